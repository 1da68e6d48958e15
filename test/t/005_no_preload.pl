# Without the library in shared_preload_libraries: nothing is delivered, and all the rest works.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;

my $node = jobq_node('unloaded', preload => 0, extension => 0, conf => [ 'max_prepared_transactions = 10' ]);
my $receiver = Receiver->start;

sub sql { return $node->safe_psql('postgres', $_[0]) }

my ($rc, $out, $err) = $node->psql('postgres', 'CREATE EXTENSION jobq');
is($rc, 0, 'CREATE EXTENSION works');
like($err, qr/^psql:<stdin>:1: NOTICE:  .*does not deliver/m, 'with a NOTICE that nothing is delivered');
like($err, qr/^HINT:  .*shared_preload_libraries.*restart/m, 'which says how to change that');
is(sql('SELECT component, state FROM jobq.status()'), 'library|not preloaded', 'jobq.status() says so too');
like(sql('SELECT message FROM jobq.status()'), qr/shared_preload_libraries.*restart/, 'and how to change it');
is(sql('SELECT jobq.preloaded(); SHOW jobq.max_payload'), "f\n1MB", 'settings are known once the library is loaded');

# A job's life by SQL

sql(sprintf q{
	SELECT jobq.create_endpoint('hook', '%s');
	SELECT jobq.create_queue('hook', endpoint => 'hook');
	SELECT jobq.create_queue('pull', max_attempts => 2, options => '{"retry_first": "0 s"}');
	CREATE TABLE orders (id int);
	CREATE TRIGGER orders AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION jobq.push_row('pull', 'order')}, $receiver->url('/ok'));

my $listener = session($node);
$listener->query_safe('LISTEN jobq; LISTEN jobq_pull; LISTEN jobq_hook');

sub heard
{
	return join ' ', sort map { $_->[0] } notifications($listener);
}

my $id = push_job($node, q{'pull', '{"n": 1}'});
is(heard(), 'jobq jobq_pull', 'a push notifies workers that LISTEN, and whoever waits for all of them');
is(sql(q{SELECT id, attempt, payload FROM jobq.pull('pull', worker => 'w')}), qq($id|1|{"n": 1}), 'a worker pulls the job');
is(sql(q{SELECT id FROM jobq.pull_held('w')}), $id, 'and holds it');
is(sql(qq{SELECT jobq.fail('$id', 1, 'no') IS NOT NULL}), 't', 'fails');
is(heard(), 'jobq jobq_pull', 'which is told, as the job waits again');
is(sql(q{SELECT attempt FROM jobq.pull('pull')}), 2, 'pulls it again');
sql(qq{SELECT jobq.complete('$id', 2, '{"done": true}')});
is(sql(qq{SELECT state, result FROM jobq.job('$id')}), 'completed|{"done": true}', 'and completes it');

sql('INSERT INTO orders SELECT generate_series(1, 100)');
is(heard(), 'jobq jobq_pull', 'a transaction notifies once, however many jobs it pushes');
sql(q{BEGIN; SELECT jobq.push('pull'); SELECT jobq.push('hook'); COMMIT});
is(heard(), 'jobq jobq_hook jobq_pull', 'and each queue that it pushed to');
sql(q{BEGIN; SELECT jobq.push('pull'); ROLLBACK});
sql(q{BEGIN; SAVEPOINT a; SELECT jobq.push('pull'); ROLLBACK TO a; SELECT jobq.push('hook'); COMMIT});
is(heard(), 'jobq jobq_hook', 'what is rolled back notifies nobody');
is(sql(q{SELECT count(*) FROM jobq.pull('pull', batch => 1000)}), 101, 'the jobs are there to be pulled');

# An idle worker: LISTEN, then wait, then pull.
{
	my $waiting = 0;
	for my $round (1 .. 5)
	{
		my $pushed = push_job($node, q{'pull'});
		my $told = '';
		until_ok(sub { $told .= heard() }, 'a worker is told') if $round == 1;
		1 until $told ne '' || ($told = heard()) ne '';
		$waiting++ if sql(q{SELECT id FROM jobq.pull('pull')}) eq $pushed;
	}
	is($waiting, 5, 'as often as there is something to pull');
}

# Two-phase commit: PostgreSQL refuses to prepare what has notified, so this tells nobody

sql(q{BEGIN; SELECT jobq.push('pull', type => 'prepared'); PREPARE TRANSACTION 'a'});
sql(q{BEGIN; SELECT jobq.push('pull', type => 'undone'); PREPARE TRANSACTION 'b'});
is(sql(q{SELECT count(*) FROM jobq.pull('pull')}), 0, 'what is only prepared is not there');
sql(q{COMMIT PREPARED 'a'});
sql(q{ROLLBACK PREPARED 'b'});
is(sql(q{SELECT string_agg(type, ', ') FROM jobq.pull('pull', batch => 10)}), 'prepared',
	'a transaction with a push may be prepared, and the job is there after COMMIT PREPARED');
is(heard(), '', 'nobody is told');

# Deliveries wait

is(sql(q{SELECT state, count(*) FROM jobq.jobs WHERE queue = 'hook' GROUP BY 1}), 'queued|2', 'jobs for an endpoint wait');
is($receiver->stats->{requests}, 0, 'nothing was delivered');
is(sql(q{SELECT due FROM jobq.stats WHERE queue = 'hook'}), 2, 'jobq.stats shows them');

# Housekeeping

sql(q{
	SELECT jobq.create_queue('short', lease => '1 ms', keep => '1 ms', options => '{"retry_first": "0 s"}');
	SELECT jobq.push('short');
	SELECT jobq.pull('short')});
until_is($node, q{SELECT bool_and(lease_until < clock_timestamp()) FROM jobq.jobs WHERE queue = 'short'}, 't', 'a lease ends');
is(sql(q{SELECT jobq.maintain() >= 1}), 't', 'jobq.maintain() takes the job back');
is(sql(q{SELECT state, failures FROM jobq.jobs WHERE queue = 'short'}), 'queued|1', 'and charges the attempt');
sql(q{SELECT jobq.complete(id, attempt) FROM jobq.pull('short')});
until_is($node, q{SELECT bool_and(finished_at < clock_timestamp() - interval '1 ms') FROM jobq.jobs WHERE queue = 'short'}, 't', 'a job gets old');
is(sql(q{SELECT jobq.maintain()}), 1, 'jobq.maintain() deletes what is not kept any longer');
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'short'}), 0, 'it is gone');

# And then the library is preloaded

close_session($listener);
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'jobq'\njobq.allow_networks = '127.0.0.1'");
$node->restart;
until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'hook' AND state = 'completed'}, 2,
	'what waited goes out once the library is preloaded');
($rc, $out, $err) = $node->psql('postgres', 'CREATE DATABASE another');
($rc, $out, $err) = $node->psql('another', 'CREATE EXTENSION jobq');
is($err, '', 'and CREATE EXTENSION has nothing to say');
$node->stop;
done_testing();
