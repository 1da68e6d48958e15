# What is seen of endpoints and of the dispatcher: jobq.endpoint_stats, jobq.send_test and
# pg_stat_activity. The periodic scan is as good as off: nothing here waits for it.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;

my $node = jobq_node('seen', conf => [ 'jobq.scan_interval = 1h', 'jobq.drain_timeout = 10min' ]);
my $receiver = Receiver->start;
my $hanging = Receiver->start;

sub sql { return $node->safe_psql('postgres', $_[0]) }

# A column, or an expression over the columns, of one endpoint's row.
sub stats_sql { my ($endpoint, $what) = @_; return "SELECT $what FROM jobq.endpoint_stats WHERE endpoint = '$endpoint'" }

sub send_test
{
	my ($endpoint, $what, $more) = @_;
	return sql("SELECT $what FROM jobq.send_test('$endpoint'" . ($more // '') . ')');
}

my $activity = q{
	SELECT state || ', ' || query FROM pg_stat_activity WHERE pid = (
		SELECT pid FROM jobq.status() WHERE component = 'dispatcher' AND database = current_database())};

# A new session that waits for the answer to a test, and its pid.
sub start_test
{
	my ($endpoint) = @_;
	my $session = session($node);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	$session->query_until(qr/asking/, qq{\\echo asking\nSELECT jobq.send_test('$endpoint');\n});
	return ($session, $pid);
}

# A single endpoint's requests answer as the jobs' headers say.
sub answer_with { my ($path) = @_; return qq{options => '{"headers": {"receiver": "$path"}, "max_attempts": 1}'} }

my $dispatcher = dispatcher($node);

# pg_stat_activity

until_is($node, $activity, 'idle, idle', 'a dispatcher with nothing to do says so');
hook($node, 'mixed', $receiver->url('/ok'), queue => { retry_first => '1 h' });
# The second job's connection is open already, as making one sets timers, which wake as well (libcurl's own last for
# 5 s); and its start comes long enough after the last change to be told of at once.
my $short = q{'mixed', } . answer_with('slow?ms=40');
until_state($node, push_job($node, $short), 'completed', 'a job is delivered');
until_is($node, "SELECT state_change < clock_timestamp() - interval '1 s' FROM pg_stat_activity WHERE pid = $dispatcher AND query = 'idle'",
	't', 'the dispatcher is idle');
until_state($node, push_job($node, $short), 'completed', 'a second one is delivered');
until_is($node, $activity, 'idle, idle', 'a burst that is over leaves nothing behind', seconds => 4);
hook($node, 'hang', $hanging->url('/hang'), endpoint => { timeout => '10 min' }, queue => { retry_first => '1 h' });
push_job($node, q{'hang'}) for 1 .. 3;
until_is($node, $activity, 'active, delivering: 3 in flight', 'pg_stat_activity shows how many requests are in flight');

# jobq.endpoint_stats

until_is($node, stats_sql('hang', 'in_flight'), 3, 'in_flight counts the requests that are under way');
is(sql(stats_sql('hang', 'breaker')), 'closed', 'the breaker is closed');
is(sql(stats_sql('hang', 'in_flight <= "window" AND "window" <= max_in_flight')), 't',
	'the window is within max_in_flight and holds what is in flight');
is(sql(stats_sql('hang', 'num_nulls(success_ratio, p50_duration, p99_duration, last_at, last_outcome, last_status, last_error)')),
	7, 'of an endpoint that has not answered yet nothing is known');

push_job($node, q{'mixed'}) for 1 .. 4;
until_is($node, stats_sql('mixed', 'succeeded'), 6, 'succeeded counts');
is(sql(stats_sql('mixed', "success_ratio, last_outcome, last_status, last_error IS NULL, last_at > now() - interval '10 min'")),
	'1|completed|200|t|t', 'the last request is told of');
push_job($node, q{'mixed', } . answer_with('slow?ms=1500'));
until_is($node, stats_sql('mixed', 'succeeded'), 7, 'a slow one succeeds too');
is(sql(stats_sql('mixed', "p50_duration < '1 s', p99_duration BETWEEN '1.2 s' AND '1 min'")), 't|t',
	'the median is that of the many, the 99th percentile that of the slowest');
push_job($node, q{'mixed', } . answer_with('status/500'));
until_is($node, stats_sql('mixed', 'failed'), 1, 'failed counts');
is(sql(stats_sql('mixed', 'success_ratio, last_outcome, last_status, last_error IS NOT NULL')), '0.875|http_500|500|t',
	'the success ratio is the part of the requests that succeeded');

hook($node, 'busy', $receiver->url('/status/503'), queue => { retry_first => '1 h' });
push_job($node, q{'busy'});
until_is($node, stats_sql('busy', 'last_outcome, last_status'), 'http_503|503', 'a refusal is seen by its status');
is(sql(stats_sql('busy', 'success_ratio')), '0', 'a ratio of none is 0');
is(sql(stats_sql('mixed', 'succeeded')), 7, 'each endpoint has its own numbers');

# jobq.send_test

sql(sprintf q{SELECT jobq.create_endpoint('%s', '%s', options => '%s')}, @$_)
  for [ 'works', $receiver->url('/ok'), '{}' ],
  [ 'refuses', 'http://127.0.0.1:1/', '{}' ],
  [ 'off', $receiver->url('/ok'), '{"enabled": false}' ],
  [ 'slow', $receiver->url('/slow?ms=700'), '{}' ],
  [ 'late', $receiver->url('/late?ms=2000'), '{}' ],
  [ 'binary', $receiver->url('/json?body=%00%FF%C3'), '{}' ];

my $before = $receiver->stats->{requests};
is(send_test('works', q{ok, outcome, status_code, duration BETWEEN '1 us' AND '1 min', http_version, address, error IS NULL, response}),
	't|completed|200|t|1.1|127.0.0.1|t|ok', 'a test of an endpoint that works tells how it went');
is($receiver->stats->{requests}, $before + 1, 'it is one request');
is(sql('SELECT count(*) FROM jobq.jobs WHERE queue NOT IN (SELECT name FROM jobq.queue)'), 0, 'and no job');
is(send_test('busy', 'ok, outcome, status_code'), 'f|http_503|503', 'an endpoint that refuses is told of by its status');
is(send_test('refuses', 'ok, outcome, status_code IS NULL, error IS NOT NULL, response IS NULL'),
	'f|connection_refused|t|t|t', 'where nothing listens, the outcome is connection_refused');
is(send_test('off', 'ok, status_code'), 't|200', 'an endpoint that is not enabled can be tested');
is(send_test('binary', q{ok, response = U&'\FFFD\FFFD\FFFD'}), 't|t', 'a response of any bytes is shown as text');

is( sql(join ';', map {
		sprintf q{SELECT jobq.create_endpoint('new%1$s', '%2$s'); SELECT ok FROM jobq.send_test('new%1$s')}, $_, $receiver->url('/ok')
	} 1 .. 20) =~ tr/t//,
	20, 'an endpoint can be tested as soon as it is committed');
like(sql(q{BEGIN; SELECT jobq.create_endpoint('uncommitted', 'http://127.0.0.1:1/');
		SELECT ok, outcome, error IS NOT NULL FROM jobq.send_test('uncommitted'); ROLLBACK}),
	qr/^f\|no_endpoint\|t$/m, 'one that is not committed is not known');

is(send_test('slow', 'ok, outcome, error IS NOT NULL', q{, timeout => '50 ms'}), 'f|no_answer|t',
	'the wait for an answer is limited');
is(send_test('late', q{ok, duration > '1 s'}), 't|t', 'the answer to a test that was given up is nobody else\'s');

# One at a time

my $session = session($node);
$session->query_safe(q{BEGIN; SELECT ok FROM jobq.send_test('works')});
is(send_test('works', 'ok', q{, timeout => '10 s'}), 't', 'a transaction that has its answer holds up nobody');
close_session($session);

my ($cancelled, $pid) = start_test('hang');
$hanging->wait_for(sub { $_[0]{in_flight} == 4 }, 'the test');
is(send_test('works', 'outcome', q{, timeout => '200 ms'}), 'no_answer', 'a second test waits for its turn');
sql("SELECT pg_cancel_backend($pid)");
is(send_test('works', 'ok'), 't', 'a cancelled session gives its turn back');
(my $terminated, $pid) = start_test('hang');
$hanging->wait_for(sub { $_[0]{in_flight} + $_[0]{aborted} >= 5 }, 'the next test');
sql("SELECT pg_terminate_backend($pid)");
is(send_test('works', 'ok'), 't', 'so does a terminated one');
close_session($cancelled);
eval { close_session($terminated) };

# A dispatcher that ends

my $launcher = sql(q{SELECT pid FROM jobq.status() WHERE component = 'launcher'});
kill 'STOP', $launcher;    # who would start the next one
sql("SELECT pg_terminate_backend($dispatcher)");
until_is($node, $activity, 'active, draining: 3 in flight', 'a dispatcher that drains says so');
is(send_test('works', q{ok, outcome, error LIKE '%draining%'}), 'f|no_dispatcher|t', 'one that drains sends no test');
sql("SELECT pg_terminate_backend($dispatcher)");
until_is($node, q{SELECT pid IS NULL FROM jobq.status() WHERE component = 'dispatcher' AND database = current_database()},
	't', 'told twice, it ends');
is(sql('SELECT count(*) FROM jobq.endpoint_stats WHERE num_nonnulls(in_flight, "window", breaker, succeeded, failed, success_ratio, p50_duration, last_outcome) > 0'),
	0, 'the numbers of a dispatcher that is gone are not shown');
is(send_test('works', q{ok, outcome, error LIKE '%backing_off%', num_nulls(status_code, duration, address, response)}),
	'f|no_dispatcher|t|4', 'where none runs, a test says so');
kill 'CONT', $launcher;
dispatcher($node, not => $dispatcher);
is(send_test('works', 'ok'), 't', 'the next one sends tests again');
is(sql(stats_sql('mixed', 'coalesce(succeeded, 0)')), 0, 'it counts from its own start');

# What was interrupted is under way again; when it ends, with nothing else happening:
until_is($node, $activity, 'active, delivering: 3 in flight', 'the next one shows what it does');
$hanging->stop;
until_is($node, $activity, 'idle, idle', 'when the last request has ended the dispatcher is idle');

done_testing;
