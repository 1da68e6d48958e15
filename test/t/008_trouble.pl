# What fails stops nothing else: jobs of which no request can be made, outcomes that cannot be recorded,
# queues that cannot be claimed from, housekeeping that fails; and what a dispatcher leaves alone.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();
use Receiver;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = jobq_node('trouble',
	conf => [ 'jobq.scan_interval = 1h', 'wal_level = logical', 'max_worker_processes = 30' ]);
my $receiver = Receiver->start;

sub sql { return $node->safe_psql($_[1] // 'postgres', $_[0]) }
sub push_to { return push_job($node, @_) }
sub message { return sql(q{SELECT coalesce(message, '') FROM jobq.status() WHERE database = current_database()}) }

sub database
{
	my ($name, $options) = @_;
	sql("CREATE DATABASE $name TEMPLATE template0 $options");
	sql('CREATE EXTENSION jobq', $name);
	hook($node, 'hook', $receiver->url('/ok'), database => $name);
	return;
}

hook($node, 'hook', $receiver->url('/ok'));
my $pid = dispatcher($node);

sub ticks
{
	my ($pid) = @_;
	my @fields = split / /, slurp_file("/proc/$pid/stat") =~ s/.*\) //r;
	return $fields[11] + $fields[12];
}

# The share of a second that the dispatcher is busy.
sub busy
{
	my $before = ticks($pid);
	my $begun = time;
	sleep(1.5);
	return (ticks($pid) - $before) / POSIX::sysconf(POSIX::_SC_CLK_TCK()) / (time - $begun);
}

# Jobs of which no request can be made

{
	# Two bytes that stand for no character: PostgreSQL takes them, and cannot say what they are in UTF-8.
	database('gb', q{ENCODING 'EUC_CN' LC_COLLATE 'C' LC_CTYPE 'C'});
	hook($node, 'poisoned', $receiver->url('/ok'), database => 'gb',
		queue => { max_attempts => 2, retry_first => '100 ms', retry_jitter => 0 });
	my $poison = q{('{"a": "' || E'\xAA\xA1' || '"}')::jsonb};
	my ($id, @others) = split /\n/, sql(qq{
		BEGIN;
		SELECT jobq.push('poisoned', $poison);
		SELECT jobq.push('poisoned') FROM generate_series(1, 5);
		SELECT jobq.push('hook') FROM generate_series(1, 5);
		COMMIT}, 'gb');
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE state = 'completed'}, 10,
		'a job of which no request can be made does not hold others', database => 'gb', seconds => 45);
	until_state($node, $id, 'dead', 'and is dead after its attempts', database => 'gb');
	like(sql(qq{SELECT string_agg(attempt || outcome || error, ' ') FROM jobq.attempts WHERE id = '$id'}, 'gb'),
		qr/^1bad_request.*0xaa 0xa1.*2bad_request.*0xaa 0xa1/, 'which say why');
	is(sql(q{SELECT count(*) FROM jobq.attempts WHERE id NOT IN (SELECT id FROM jobq.jobs WHERE state = 'dead') AND attempt > 1}, 'gb'), 0,
		'the others were tried once');
}
{
	database('ascii', q{ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'});
	my $id = push_to(q{'hook', ('{"a": "Andr' || E'\xe9' || '"}')::jsonb, type => E'\xe9'}, 'ascii');
	until_state($node, $id, 'completed', 'what is not UTF-8 is delivered from a database without an encoding', database => 'ascii');
	my ($request) = $receiver->requests(id => $id);
	is($request->{body}, qq({"a": "Andr\x{fffd}"}), 'with replacements');
}
{
	database('mule', q{ENCODING 'MULE_INTERNAL' LC_COLLATE 'C' LC_CTYPE 'C'});
	my $id = push_to(q{'hook', options => '{"headers": {"receiver": "json?body={\"a\": \"%C3%A9\"}"}}'}, 'mule');
	until_state($node, $id, 'completed', 'so is ASCII from a database that cannot be converted to UTF-8', database => 'mule');
	is(sql(qq{SELECT result IS NULL, response FROM jobq.jobs JOIN jobq.attempts USING (id) WHERE id = '$id'}, 'mule'),
		't|{"a": "??"}', 'with an answer that has no place in it');
}
{
	my $numbers = join ',', ('1e131000') x 50;
	my $id = push_to(sprintf q{'hook', options => '%s'},
		encode_json({ headers => { receiver => "json?body=[$numbers]" } }));
	until_state($node, $id, 'completed', 'an answer with absurd numbers completes its job');
	is(sql(qq{SELECT result IS NULL, response FROM jobq.jobs JOIN jobq.attempts USING (id) WHERE id = '$id'}), "t|[$numbers]",
		'as a text');
}
{
	my $own = Receiver->start(keep => 0);
	hook($node, 'large', $own->url('/slow?ms=60000'), endpoint => { max_in_flight => 200 });
	sql(q{SELECT count(jobq.push('large', jsonb_build_object('n', n, 'text', repeat('x', 1000000)))) FROM generate_series(1, 100) AS n});
	$own->wait_for(sub { $_[0]{in_flight} >= 60 }, 'many large requests');
	sql(q{SELECT count(jobq.push('large', jsonb_build_object('n', n))) FROM generate_series(1, 5) AS n});
	until_ok(sub { busy() < 0.2 }, 'the rest waits, and the dispatcher rests', 20);
	cmp_ok(sql(q{SELECT count(*) FROM jobq.job WHERE delivery}), '<=', 68, 'no more than 64 MB are in flight');
	sql(q{SELECT jobq.drop_queue('large', force => true)});
	$own->stop;
	until_is($node, q{SELECT count(*) FROM jobq.job}, 0, 'they go on when there is room');
}

# Outcomes that cannot be recorded

{
	# An index of somebody's own, which one outcome breaks.
	sql(q{CREATE UNIQUE INDEX own_index ON jobq.finished (type) WHERE type = 'clash'});
	until_state($node, push_to(q{'hook', type => 'clash'}), 'completed', 'a job is completed');
	$receiver->reset;
	my ($id, @others) = split /\n/, sql(q{
		SELECT jobq.push('hook', type => 'clash') UNION ALL SELECT jobq.push('hook') FROM generate_series(1, 20)});
	my $others = join ', ', map { "'$_'" } @others;
	until_is($node, qq{SELECT count(*) FROM jobq.jobs WHERE id IN ($others) AND state = 'completed'}, 20,
		'an outcome that cannot be recorded does not hold those of others', seconds => 45);
	is(state_of($node, $id), 'running', 'its job waits');
	until_ok(sub { message() =~ /could not record the outcome of job $id: duplicate key/ }, 'jobq.status() says so');
	until_state($node, push_to(q{'hook'}), 'completed', 'another job is delivered all the same');
	sql(q{DROP INDEX jobq.own_index});
	until_state($node, $id, 'completed', 'it is recorded when it can be');
	is(scalar($receiver->requests(id => $id)), 1, 'without another delivery');
	until_ok(sub { message() eq '' }, 'jobq.status() has nothing more to say');
	is(occurrences($node, qr/could not record the outcome of job/), 1, 'the log tells of it once');
}

# Queues that cannot be claimed from

{
	sql(q{CREATE INDEX own_index ON jobq.job ((1 / CASE WHEN lease_until IS NOT NULL AND type = 'breaks' THEN 0 ELSE 1 END))});
	hook($node, 'broken', $receiver->url('/ok'));
	my $id = push_to(q{'broken', type => 'breaks'});
	until_ok(sub { message() =~ /could not claim from queue "broken": division by zero/ },
		'jobq.status() tells of a queue that cannot be claimed from');
	until_state($node, push_to(q{'hook'}), 'completed', 'others are claimed from all the same');
	is(state_of($node, $id), 'queued', 'its job waits');
	sql(q{DROP INDEX jobq.own_index});
	until_state($node, $id, 'completed', 'and is delivered when it can be');
	until_ok(sub { message() eq '' }, 'jobq.status() has nothing more to say of it');
	is(dispatcher_pid($node, 'postgres'), $pid, 'all by the same dispatcher');
}

# Housekeeping that fails

{
	# Nothing can be deleted from a published table without a replica identity, and that is what a dispatcher
	# tries first of all.
	sql(q{ALTER TABLE jobq.finished REPLICA IDENTITY NOTHING; CREATE PUBLICATION everything FOR ALL TABLES});
	sql("SELECT pg_terminate_backend($pid)");
	$pid = dispatcher($node, not => $pid);
	until_state($node, push_to(q{'hook'}), 'completed', 'old jobs that cannot be deleted do not stop deliveries');
	until_ok(sub { message() =~ /could not delete old jobs/ }, 'jobq.status() says so');
	sql(q{DROP PUBLICATION everything; ALTER TABLE jobq.finished REPLICA IDENTITY DEFAULT});
	until_ok(sub { message() eq '' }, 'it is tried again before long');
	is(occurrences($node, qr/could not delete old jobs/), 1, 'the log told of it once');
}

# A dispatcher that does not get on at all

{
	sql(q{SELECT jobq.create_queue('listened')});
	my $listener = session($node);
	$listener->query_safe('LISTEN jobq_listened');
	sql(q{ALTER TABLE jobq.queue RENAME paused TO other; UPDATE jobq.queue SET keep = keep});
	until_is($node, q{SELECT state, message FROM jobq.status() WHERE database = 'postgres'}, 'failing|column q.paused does not exist',
		'jobq.status() says that the dispatcher fails, and why');
	push_to(q{'listened'});
	my @heard;
	until_ok(sub { push @heard, notifications($listener); @heard }, 'who listens is told of a push by the push itself');
	isnt($heard[0][1], $pid, 'not by the dispatcher');
	my $id = push_to(q{'hook'});
	sql(q{ALTER TABLE jobq.queue RENAME other TO paused});
	until_state($node, $id, 'completed', 'it goes on when it can');
	is(sql(q{SELECT state, message FROM jobq.status() WHERE database = 'postgres'}), 'running|', 'and jobq.status() says so');
	close_session($listener);
}

# Endpoints that come after the settings were read

{
	# Without the trigger that tells of it, as to a claim between the commit and the news of it.
	sql(sprintf q{SET session_replication_role = replica; SELECT jobq.create_endpoint('new', '%s')}, $receiver->url('/new'));
	my $id = push_to(q{'hook', options => '{"endpoint": "new", "max_attempts": 1}'});
	until_state($node, $id, 'completed', 'a job is delivered to an endpoint that the dispatcher has not heard of');
	is(story($node, $id), '1 completed', 'which it looks for before it claims');
	sql(q{SELECT jobq.push('hook', type => 'gone', options => '{"endpoint": "new", "max_attempts": 1}', delay => '500 ms');
		DELETE FROM jobq.endpoint WHERE name = 'new'});
	until_is($node, q{SELECT state, error FROM jobq.jobs WHERE type = 'gone'}, 'dead|the endpoint does not exist any more',
		'a job for an endpoint that is gone fails');
}

# Leases of deliveries

{
	my $own = Receiver->start;
	hook($node, 'patient', $own->url('/slow?ms=3000'), endpoint => { timeout => '10 min' });
	sql(q{SELECT jobq.alter_queue('hook', lease => '1 s')});
	my ($id) = split /\n/, sql(q{
		SELECT jobq.push('hook', group_key => 'g', options => '{"endpoint": "patient"}') FROM generate_series(1, 2)});
	$own->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request in flight');
	is(sql(q{SELECT lease_until > started_at + interval '10 min' FROM jobq.job WHERE delivery}), 't',
		'the lease of a delivery is over its own endpoint\'s timeout');
	sql(q{UPDATE jobq.job SET lease_until = clock_timestamp() WHERE delivery});
	sql(q{SELECT jobq.maintain(); NOTIFY jobq});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE group_key = 'g' AND state = 'completed'}, 2,
		'a delivery that is in flight is not ended by its lease');
	my $stats = $own->stats;
	is("$stats->{requests} $stats->{peak_in_flight}", '2 1', 'nor sent again, nor the next of its group beside it');
	sql(q{SELECT jobq.alter_queue('hook', lease => '5 min')});
}

# Due jobs that nobody may claim

{
	my $own = Receiver->start;
	hook($node, 'single', $own->url('/slow?ms=60000'), endpoint => { max_in_flight => 1 });
	my $due = push_to(q{'hook', delay => '500 ms'});
	sql(q{SELECT jobq.pause('hook')});
	until_is($node, qq{SELECT run_at < clock_timestamp() FROM jobq.jobs WHERE id = '$due'}, 't', 'a job comes due in a paused queue');
	until_ok(sub { busy() < 0.2 }, 'the dispatcher rests', 20);
	sql(q{SELECT jobq.resume('hook')});
	until_state($node, $due, 'completed', 'until the queue is resumed');

	$due = push_to(q{'single', delay => '500 ms'});
	push_to(q{'single'});
	$own->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request in flight');
	until_is($node, qq{SELECT run_at < clock_timestamp() FROM jobq.jobs WHERE id = '$due'}, 't', 'a job comes due for a full endpoint');
	until_ok(sub { busy() < 0.2 }, 'the dispatcher rests', 20);
	sql(q{SELECT jobq.drop_queue('single', force => true)});
}

# What a dispatcher leaves alone

{
	sql(q{
		CREATE ROLE app;
		GRANT ALL ON ALL TABLES IN SCHEMA jobq TO app;
		GRANT USAGE ON SCHEMA jobq TO app;
		GRANT CREATE ON SCHEMA public TO app;
		SET ROLE app;
		CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ALTER ROLE app SUPERUSER; RETURN NEW; END $$;
		CREATE TRIGGER evil BEFORE INSERT ON jobq.attempt FOR EACH ROW EXECUTE FUNCTION evil();
		CREATE TRIGGER evil BEFORE INSERT ON jobq.dead FOR EACH ROW EXECUTE FUNCTION evil();
		CREATE TRIGGER evil BEFORE UPDATE ON jobq.job FOR EACH ROW EXECUTE FUNCTION evil()});
	my $id = push_to(q{'hook', options => '{"max_attempts": 2, "headers": {"receiver": "fail"}}'});
	until_state($node, $id, 'dead', 'a job fails and is dead');
	is(sql(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'app'}), 'f', 'triggers on its tables do not run as the dispatcher');
	sql(q{DROP TRIGGER evil ON jobq.attempt; DROP TRIGGER evil ON jobq.dead; DROP TRIGGER evil ON jobq.job});
}
{
	sql(q{ALTER DATABASE postgres SET role = app; ALTER DATABASE postgres SET enable_nestloop = off});
	$node->psql('postgres', "SET ROLE NONE; SELECT pg_terminate_backend($pid)");
	until_ok(sub {
		my ($rc, $out) = $node->psql('postgres', q{SET ROLE NONE; SELECT pid FROM jobq.status() WHERE database = 'postgres' AND state = 'running'});
		$out =~ s/\D//g;
		return $out ne '' && $out ne $pid && ($pid = $out);
	}, 'a dispatcher starts where a role is set for its database');
	sql(q{SET ROLE NONE; ALTER DATABASE postgres RESET ALL});
	until_state($node, push_to(q{'hook'}), 'completed', 'and delivers');
	is(dispatcher_pid($node, 'postgres'), $pid, 'without a fall');
}

# jobq.deliver

{
	sql(q{SELECT jobq.create_queue('pulled', options => '{"lease": "100 ms", "keep": "0.1 s"}')});
	sql(q{SELECT jobq.alter_queue('hook', keep => '100 ms')});
	until_state($node, push_to(q{'hook'}), 'completed', 'a job is completed');
	sql(q{ALTER SYSTEM SET jobq.deliver = off});
	$node->reload;
	until_is($node, q{SELECT state, message FROM jobq.status() WHERE database = 'postgres'}, 'off|jobq.deliver is off',
		'deliveries can be switched off');
	$receiver->reset;
	my $finished = sql(q{SELECT count(*) FROM jobq.finished});
	my $id = push_to(q{'hook'});
	push_to(q{'pulled'});
	sql(q{SELECT count(*) FROM jobq.pull('pulled')});
	sql(q{NOTIFY jobq}) for 1 .. 5;
	until_ok(sub { busy() < 0.2 }, 'the dispatcher rests', 20);
	is(sql(q{SELECT count(*) FROM jobq.finished}), $finished, 'nothing is deleted then');
	is(sql(q{SELECT state FROM jobq.jobs WHERE queue = 'pulled'}), 'running', 'no lease is ended');
	is($receiver->stats->{requests} . state_of($node, $id), '0queued', 'and nothing delivered');
	sql(q{ALTER SYSTEM RESET jobq.deliver});
	$node->reload;
	until_state($node, $id, 'completed', 'and on again');
}

# A copy

{
	sql(q{CREATE DATABASE other});
	sql(q{CREATE EXTENSION jobq}, 'other');
	sql(q{SELECT jobq.create_queue('pulled', options => '{"lease": "100 ms", "keep": "0.1 s"}');
		SELECT jobq.push('pulled') FROM generate_series(1, 2);
		UPDATE jobq.queue SET home = 'elsewhere';
		SELECT count(jobq.complete(id, attempt)) FROM jobq.pull('pulled');
		SELECT count(*) FROM jobq.pull('pulled')}, 'other');
	until_is($node, q{SELECT state FROM jobq.status() WHERE database = 'other'}, 'foreign', 'a copy is foreign');
	sql(q{NOTIFY jobq}, 'other');
	my $foreign = sql(q{SELECT pid FROM jobq.status() WHERE database = 'other'});
	sql("SELECT pg_terminate_backend($foreign)");
	until_is($node, qq{SELECT pid <> $foreign AND state = 'foreign' FROM jobq.status() WHERE database = 'other'}, 't',
		'also to another dispatcher');
	is(sql(q{SELECT string_agg(state::text, ' ' ORDER BY state) FROM jobq.jobs}, 'other'), 'running completed',
		'its dispatcher deletes nothing and ends no lease');
	is(occurrences($node, qr/nothing is delivered in this database, because its jobs belong to another/), 2,
		'the log says that nothing is delivered, once a dispatcher');
}

done_testing();
