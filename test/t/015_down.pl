# Endpoints that are down: their breakers, what their jobs are charged, and what others notice of it.
# The periodic scan is as good as off: what goes on by itself was timed.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use IO::Socket::INET;
use IPC::Run;
use JobqTest;
use List::Util qw(max sum);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;

my $node = jobq_node('down', conf => [ 'jobq.scan_interval = 1h' ]);

sub sql { return $node->safe_psql('postgres', $_[0]) }
sub stats_sql { my ($endpoint, $what) = @_; return "SELECT $what FROM jobq.endpoint_stats WHERE endpoint = '$endpoint'" }
sub push_many { my ($queue, $count, $more) = @_; return sql("SELECT jobq.push('$queue'" . ($more // '') . ") FROM generate_series(1, $count)") }
sub states_sql { return "SELECT string_agg(state || ' ' || n, ', ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM jobq.jobs WHERE queue = '$_[0]' GROUP BY 1) AS s" }

# How many attempts at a queue's jobs ended like this.
sub outcomes_sql
{
	my ($queue, $outcome) = @_;
	return "SELECT count(*) FROM jobq.attempts JOIN jobq.jobs USING (id) WHERE queue = '$queue' AND outcome = '$outcome'";
}

# A receiver that is not there, but may come.
sub absent
{
	my $receiver = Receiver->start(@_);
	$receiver->stop;
	return $receiver;
}

# Without the breaker each of these jobs is dead within 50 ms.
my %soon = (max_attempts => 3, retry_first => '10 ms', retry_longest => '10 ms');

# Two that are down: nothing listens at "absent"; "ill" answers, but with 500. Jobs enough that
# probes alone would not use up the attempts of any.

my $absent = absent(keep => 0);
my $ill = Receiver->start(keep => 0);
$ill->answer('/status/500');
hook($node, 'absent', $absent->url('/ok'),
	endpoint => { breaker_failures => 5, breaker_first => '1 s', breaker_longest => '1 s' }, queue => {%soon});
hook($node, 'ill', $ill->url('/ok'),
	endpoint => { breaker_failures => 5, breaker_first => '1 s', breaker_longest => '3 s' }, queue => {%soon});
push_many($_, 400) for qw(absent ill);
until_is($node, stats_sql($_, q{breaker = 'open' AND breaker_until BETWEEN clock_timestamp() AND clock_timestamp() + interval '1 s'}),
	't', "$_: failures open the breaker, for breaker_first") for qw(absent ill);

# Meanwhile, what opens none

{
	my $picky = Receiver->start;
	hook($node, 'picky', $picky->url('/status/404'), endpoint => { breaker_failures => 2 }, queue => { max_attempts => 1 });
	push_many('picky', 50);
	until_is($node, states_sql('picky'), 'dead 50', 'what is answered with 4xx has all left');
	is($picky->stats->{requests}, 50, 'and arrived');
	is(sql(stats_sql('picky', 'breaker')), 'closed', 'the breaker of an endpoint that answers with 4xx is closed');

	hook($node, 'never', absent()->url('/ok'), endpoint => { breaker_failures => 0 }, queue => { max_attempts => 1 });
	push_many('never', 50);
	until_is($node, states_sql('never'), 'dead 50', 'with breaker_failures 0 all jobs are tried');
	is(sql(stats_sql('never', 'breaker')), 'closed', 'and the breaker stays closed');
	is(sql(q{SELECT DISTINCT outcome || ' ' || failures FROM jobq.attempts JOIN jobq.jobs USING (id) WHERE queue = 'never'}),
		'connection_refused 1', 'where nothing is known of the endpoint, a refused connection is charged');
}

# Only probes leave while it is open

{
	$ill->wait_for(sub { $_[0]{last_arrival} - $_[0]{first_arrival} > 8_500 }, 'probes after 1, 3, 6 and 9 s');
	my @arrivals = map { $_->{arrived} } $ill->requests;
	my @groups = ([ shift @arrivals ]); # what arrives together
	for my $at (@arrivals)
	{
		push @groups, [] if $at - $groups[-1][-1] > 500;
		push @{ $groups[-1] }, $at;
	}
	my $first = shift @groups;
	my @waits = map { $groups[$_][0] - ($_ ? $groups[ $_ - 1 ][0] : $first->[4]) } 0 .. $#groups;
	note('requests before it opened: ' . @$first . '; then ' . join(', ', map { sprintf '%d after %.0f ms', scalar @{ $groups[$_] }, $waits[$_] } 0 .. $#groups));
	cmp_ok(scalar @$first, '<=', 50 + 4, 'no more leave, once it is open, than were under way');
	is(max(map { scalar @$_ } @groups), 1, 'then a single probe at a time');
	my @expected = (1000, 2000, 3000, 3000);
	is(scalar(grep { $waits[$_] < $expected[$_] - 20 } 0 .. 3), 0, 'after waits that double each time, up to breaker_longest');
	cmp_ok($waits[3], '<', 5500, 'and not beyond');
	is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'ill' AND (failures > 1 OR state = 'dead')}), 0,
		'no job was charged twice');
}

# A good probe closes it

{
	$ill->answer('/slow?ms=1500');
	until_is($node, stats_sql('ill', q{breaker, in_flight}), 'half_open|1', 'while the probe is under way, nothing else leaves');
	$ill->answer;
	until_is($node, states_sql('ill'), 'completed 400', 'after a good one all that waited is delivered');
	is(sql(stats_sql('ill', q{breaker, breaker_until IS NULL})), 'closed|t', 'and the breaker is closed');
}

# Jobs that never left are not charged

{
	until_is($node, outcomes_sql('absent', 'connection_refused') =~ s/count\(\*\)/count(*) >= 14/r, 't',
		'an endpoint without a listener was tried far more often than its jobs have attempts');
	my $probed = sql(q{SELECT max(n) FROM (SELECT count(*) AS n FROM jobq.attempts JOIN jobq.jobs USING (id)
		WHERE queue = 'absent' AND outcome = 'connection_refused' GROUP BY id) AS s});
	cmp_ok($probed, '>', 3, 'one of them too');
	is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'absent' AND state = 'dead'}), 0, 'none is dead for it');
	cmp_ok(sql(q{SELECT sum(failures) FROM jobq.jobs WHERE queue = 'absent'}), '<=', 5,
		'no more attempts are charged than it takes to open the breaker');
	$absent->restart;
	until_is($node, states_sql('absent'), 'completed 400', 'when somebody listens there, all are delivered');
	is($absent->stats->{requests}, 400, 'once each');
	is(sql(stats_sql('absent', 'breaker')), 'closed', 'and the breaker is closed');
}

{
	# It accepts no connection, and does not refuse any: its backlog is full.
	my $deaf = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1) or die "listen: $!";
	listen($deaf, 0);
	my @waiting = map { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $deaf->sockport, Blocking => 0) } 1 .. 3;
	hook($node, 'deaf', 'http://127.0.0.1:' . $deaf->sockport . '/',
		endpoint => { connect_timeout => '200 ms', breaker_failures => 3, breaker_first => '1 h', breaker_longest => '1 h' }, queue => {%soon});
	push_many('deaf', 50);
	until_is($node, stats_sql('deaf', q{breaker, in_flight}), 'open|0', 'connections that are not made open the breaker too');
	until_is($node, states_sql('deaf'), 'queued 50', 'all jobs wait');
	my ($tried, $dropped) = map { sql(outcomes_sql('deaf', $_)) } 'timeout', 'breaker_open';
	is($tried + $dropped, 50, 'all were claimed, and came back');
	cmp_ok($dropped, '>', 20, 'most as they waited for the few that tried to connect, which their outcome breaker_open says');
	is(sql(q{SELECT DISTINCT attempt, failures FROM jobq.jobs JOIN jobq.attempts USING (id, attempt) WHERE queue = 'deaf' AND outcome = 'breaker_open'}),
		'1|0', 'and are not charged');
	cmp_ok(sql(q{SELECT sum(failures) FROM jobq.jobs WHERE queue = 'deaf'}), '<', 3, 'of the few, not more are than it takes to open it');
}

# A busy one that goes down: what it answered well before does not cost the jobs of now their attempts.

{
	my $busy = Receiver->start(keep => 0);
	hook($node, 'busy', $busy->url('/ok'), endpoint => { breaker_first => '1 s', breaker_longest => '1 s' }, queue => {%soon});
	push_many('busy', 3000);
	until_is($node, states_sql('busy'), 'completed 3000', 'an endpoint answers thousands of requests');
	$busy->answer('/status/503');
	push_many('busy', 400);
	until_is($node, stats_sql('busy', 'breaker'), 'open', 'and then none: its breaker opens at once');
	is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'busy' AND state = 'dead'}), 0, 'no job is dead');
	$busy->answer;
	until_is($node, states_sql('busy'), 'completed 3400', 'and all are delivered later');
}

# It is the dispatcher's: another one starts with all breakers closed, and a setting ends it.

{
	my $late = absent(keep => 0);
	my %long = (breaker_failures => 3, breaker_first => '1 h', breaker_longest => '1 h');
	hook($node, $_, $late->url('/ok'), endpoint => {%long}, queue => {%soon}) for qw(altered restarted);
	push_many($_, 100) for qw(altered restarted);
	until_is($node, stats_sql($_, 'breaker'), 'open', "$_: the breaker is open, for long") for qw(altered restarted);
	$late->restart;
	is(sql(stats_sql('altered', q{breaker_until > clock_timestamp() + interval '50 min'})), 't', 'as endpoint_stats tells');
	sql(q{SELECT jobq.alter_endpoint('altered', options => '{"breaker_failures": 0}')});
	until_is($node, states_sql('altered'), 'completed 100', 'breaker_failures 0 ends the wait');
	is(sql(stats_sql('restarted', q{breaker})), 'open', 'of this endpoint only');
	is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'restarted' AND state <> 'queued'}), 0, 'whose jobs wait');
	my $pid = dispatcher($node);
	sql("SELECT pg_terminate_backend($pid)");
	isnt(dispatcher($node, not => $pid), $pid, 'the dispatcher is restarted');
	until_is($node, states_sql('restarted'), 'completed 100', 'the next one knows nothing of the breaker, and sends');
	is(sql(stats_sql('restarted', q{breaker})), 'closed', 'which is closed');
}

# What others notice. An endpoint that answers at once has the dispatcher to itself, and then shares it
# with one that hangs until its requests time out, its window always full, and one that refuses
# connections: by default, and with no breakers, so that nothing spares the dispatcher any of it.
# All under steady load; measured from push to arrival.
#
# Several rounds, as the machine may be busy with something else in any of them: of the 99th
# percentiles the median counts. Where it is alone that is a millisecond or two, and the scheduler of a
# machine with few cores adds as much for each process more that is at work: hence a floor. Without
# breakers 50 requests end and 50 others connect, all at once and twice a second, which takes the
# dispatcher some milliseconds: hence another. One that waited for a request that hangs would be half a
# second late.

{
	my ($rounds, $seconds) = (5, 0.8);
	my $fast = Receiver->start(keep => 0);
	my $hanging = Receiver->start(keep => 0);
	my @others = qw(hanging refusing);
	hook($node, 'fast', $fast->url('/ok'));
	hook($node, 'hanging', $hanging->url('/hang'), endpoint => { timeout => '500 ms' });
	hook($node, 'refusing', absent()->url('/ok'));

	my $dir = PostgreSQL::Test::Utils::tempdir();
	append_to_file("$dir/$_", "SELECT jobq.push('$_', jsonb_build_object('pushed_at', clock_timestamp()));\n") for 'fast', @others;

	# Pushes that come at random, so many a second.
	my $load = sub {
		my ($queue, $rate) = @_;
		my %run = (out => '');
		my $transactions = int($rate * $seconds);
		$run{handle} = IPC::Run::start([ 'pgbench', '--no-vacuum', "--rate=$rate", "--transactions=$transactions", '--random-seed=1',
				'--file', "$dir/$queue", $node->connstr('postgres') ],
			'<', \'', '>', \$run{out}, '2>&1', IPC::Run::timeout($timeout));
		return \%run;
	};
	my $round = sub {
		my (@queues) = @_;
		$fast->reset;
		my @runs = map { $load->($_, $_ eq 'fast' ? 300 : 100) } @queues, 'fast';
		for my $run (@runs)
		{
			$run->{handle}->finish;
			die $run->{out} unless $run->{out} =~ /actually processed: (\d+)\/\1\b/;
		}
		return $fast->wait_for(sub { $_[0]{requests} >= int(300 * $seconds) }, 'all to arrive')->{latency}{p99};
	};
	my $quiet = sub {
		sql(q{SELECT jobq.clear(q) FROM unnest('{hanging,refusing}'::text[]) AS q});
		until_is($node, q{SELECT in_flight FROM jobq.status() WHERE component = 'dispatcher'}, 0, 'nothing else is under way');
	};
	my $set = sub {
		my ($options) = @_;
		sql("SELECT jobq.alter_endpoint(e, options => '$options') FROM unnest('{hanging,refusing}'::text[]) AS e");
	};
	my $median = sub { return (sort { $a <=> $b } @_)[ @_ / 2 ] };

	$round->(); # connections, caches
	my %p99;
	for (1 .. $rounds)
	{
		push @{ $p99{alone} }, $round->();
		$set->('{"breaker_failures": 10, "min_in_flight": 1}');
		push @{ $p99{together} }, $round->(@others);
		$set->('{"breaker_failures": 0, "min_in_flight": 50}');
		push @{ $p99{'without breakers'} }, $round->(@others);
		is(sql(stats_sql('hanging', '"window"')), 50, 'the window of the one that hangs is full');
		$quiet->();
	}
	my %medians = map { $_ => $median->(@{ $p99{$_} }) } keys %p99;
	note(sprintf '99th percentile from push to arrival, %s: median %.1f ms of %s', $_, $medians{$_},
		join(', ', map { sprintf '%.1f', $_ } sort { $a <=> $b } @{ $p99{$_} })) for sort keys %p99;
	cmp_ok($medians{together}, '<=', 2 * $medians{alone} + 5,
		'what hangs and what refuses is not noticed by others: twice the 99th percentile at most');
	cmp_ok($medians{'without breakers'}, '<=', 2 * $medians{alone} + 25, 'and hardly if nothing is kept from them');
	cmp_ok($hanging->stats->{aborted}, '>', 300, 'there were requests that hung');
	cmp_ok(sql(stats_sql('refusing', 'failed')), '>', 300, 'and connections that were refused');
}

done_testing();
