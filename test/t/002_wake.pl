# Wake-ups: everything that makes a job claimable is told to the dispatcher after the commit, and to
# workers that LISTEN. The scans are an hour apart, so whatever arrives was announced; and each step
# waits for its job before the next one could wake the dispatcher in its place.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use List::Util qw(min max);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;
use Time::HiRes qw(time);

my $node = jobq_node('wake', conf => [ 'jobq.scan_interval = 1h', 'max_prepared_transactions = 10' ]);
my $receiver = Receiver->start;
# Housekeeping comes round once a minute: what is announced must not need that long.
my $soon = 45;

sub sql { return $node->safe_psql('postgres', $_[0]) }

hook($node, 'hook', $receiver->url('/ok'), queue => { retry_first => '100 ms', retry_jitter => 0 });

my @took;
# Runs some SQL, after which a job of the type is to be delivered.
sub wakes
{
	my ($name, $type, $sql) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $begun = time;
	ref $sql ? $sql->() : sql($sql);
	until_ok(sub { grep { ($_->{type} // '') eq $type } $receiver->requests }, $name, $soon);
	push @took, time - $begun;
	# Nothing is left to do that would keep the dispatcher awake.
	until_is($node, q{SELECT count(*) FROM jobq.job WHERE delivery}, 0, "$name: and is completed");
	return;
}

# Pushes

wakes('a push wakes the dispatcher', 'plain', q{SELECT jobq.push('hook', type => 'plain')});
wakes('push_many does', 'many', q{SELECT jobq.push_many('hook', '{"{}", "{}"}', type => 'many')});
wakes('push_bytes does', 'bytes', q{SELECT jobq.push_bytes('hook', 'x', type => 'bytes')});
sql(q{
	CREATE TABLE orders (id int PRIMARY KEY);
	CREATE TRIGGER each_row AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION jobq.push_row('hook', 'row');
	CREATE TRIGGER all_rows AFTER UPDATE ON orders REFERENCING NEW TABLE AS new_rows
		FOR EACH STATEMENT EXECUTE FUNCTION jobq.push_row('hook', 'rows');
	CREATE TABLE deferred (id int);
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON deferred DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION jobq.push_row('hook', 'deferred');
	CREATE FUNCTION in_function() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		BEGIN
			PERFORM jobq.push('hook', type => 'in function');
		EXCEPTION WHEN OTHERS THEN RAISE;
		END;
		BEGIN
			PERFORM jobq.push('hook', type => 'undone');
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END $$;
	CREATE PROCEDURE in_procedure() LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM jobq.push('hook', type => 'before commit');
		COMMIT;
		PERFORM pg_sleep(3600);
	END $$});
wakes('a push by a trigger does', 'row', q{INSERT INTO orders SELECT generate_series(1, 3)});
wakes('a push by a statement trigger does', 'rows', q{UPDATE orders SET id = id + 10});
wakes('a push by a deferred trigger does', 'deferred', q{INSERT INTO deferred VALUES (1)});
wakes('a push in a function, with an exception block, does', 'in function', q{SELECT in_function()});
wakes('a push before ROLLBACK TO SAVEPOINT does', 'before savepoint', q{
	BEGIN;
	SELECT jobq.push('hook', type => 'before savepoint');
	SAVEPOINT a;
	SELECT jobq.push('hook', type => 'undone');
	ROLLBACK TO SAVEPOINT a;
	COMMIT});
wakes('a push after ROLLBACK TO SAVEPOINT does', 'after savepoint', q{
	BEGIN;
	SAVEPOINT a;
	SELECT jobq.push('hook', type => 'undone');
	ROLLBACK TO SAVEPOINT a;
	SELECT jobq.push('hook', type => 'after savepoint');
	COMMIT});
wakes('a push in a released savepoint does', 'in savepoint', q{
	BEGIN;
	SAVEPOINT a;
	SAVEPOINT b;
	SELECT jobq.push('hook', type => 'in savepoint');
	RELEASE SAVEPOINT b;
	SAVEPOINT c;
	SELECT jobq.push('hook', type => 'undone');
	ROLLBACK TO SAVEPOINT c;
	RELEASE SAVEPOINT a;
	COMMIT});
wakes('a push in a read-only caller\'s next transaction does', 'next', q{
	BEGIN; SELECT jobq.push('hook', type => 'undone'); ROLLBACK;
	BEGIN; SELECT 1; COMMIT;
	BEGIN; SELECT jobq.push('hook', type => 'next'); COMMIT});
{
	my $session = session($node);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	wakes('a push before the COMMIT of a procedure does, while that runs on', 'before commit', sub {
		$session->query_until(qr/^sent$/m, "\\echo sent\nCALL in_procedure();\n");
	});
	sql("SELECT pg_cancel_backend($pid)");
	close_session($session);
}
wakes('a push with synchronous_commit off does', 'asynchronous', q{
	SET synchronous_commit = off; SELECT jobq.push('hook', type => 'asynchronous')});
wakes('a push in a serializable transaction does', 'serializable', q{
	BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT jobq.push('hook', type => 'serializable'); COMMIT});
{
	sql(q{SELECT jobq.create_queue('hook ' || n, endpoint => 'hook') FROM generate_series(1, 100) AS n});
	my $begun = time;
	sql(q{SELECT jobq.push('hook ' || n, type => 'one of many') FROM generate_series(1, 100) AS n});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE type = 'one of many' AND state = 'completed'}, 100,
		'a transaction that pushes to 100 queues wakes for each', seconds => $soon);
}

# What is prepared

wakes('COMMIT PREPARED does', 'prepared', q{
	BEGIN; SELECT jobq.push('hook', type => 'prepared'); PREPARE TRANSACTION 'a'; COMMIT PREPARED 'a'});
{
	sql(q{BEGIN; SELECT jobq.push('hook', type => 'prepared, later'); PREPARE TRANSACTION 'b'});
	wakes('a push beside a prepared transaction does', 'beside', q{SELECT jobq.push('hook', type => 'beside')});
	is(scalar(grep { ($_->{type} // '') eq 'prepared, later' } $receiver->requests), 0,
		'what is only prepared is not delivered');
	wakes('COMMIT PREPARED by another session does', 'prepared, later', q{COMMIT PREPARED 'b'});

	sql(q{BEGIN; SELECT jobq.push('hook', type => 'undone'); PREPARE TRANSACTION 'c'});
	sql(q{BEGIN; SELECT jobq.push('hook', type => 'over a restart'); PREPARE TRANSACTION 'd'});
	$node->restart;
	dispatcher($node);
	sql(q{ROLLBACK PREPARED 'c'});
	wakes('COMMIT PREPARED does after a restart of the server', 'over a restart', q{COMMIT PREPARED 'd'});
}

# What is not a push

{
	sql(q{
		INSERT INTO jobq.job (id, seq, run_at, queue_id, attempt, priority, failures, max_attempts, type, pushed_by, payload)
			SELECT gen_random_uuid(), nextval('jobq.push_order'), clock_timestamp(), id, 0, 0, 0, 25, 'by hand', 'me', '{}'
			FROM jobq.queue WHERE name = 'hook 1'});
	wakes('a push to another queue does', 'other', q{SELECT jobq.push('hook', type => 'other')});
	is(sql(q{SELECT state FROM jobq.jobs WHERE type = 'by hand'}), 'queued', 'a row inserted by hand wakes nobody');
	wakes('NOTIFY jobq does, for all queues', 'by hand', q{NOTIFY jobq});
}
{
	sql(q{SELECT jobq.pause('hook')});
	sql(q{SELECT jobq.push('hook', type => 'paused'), jobq.push('hook', type => 'paused, far', delay => '1 day')});
	wakes('a push to another queue does', 'other than paused', q{SELECT jobq.push('hook 1', type => 'other than paused')});
	wakes('resume does', 'paused', q{SELECT jobq.resume('hook')});

	wakes('retry of a job for later does', 'paused, far',
		q{SELECT jobq.retry(id) FROM jobq.jobs WHERE type = 'paused, far'});
	my $id = push_job($node, q{'hook', type => 'to be dead', options => '{"max_attempts": 1, "headers": {"receiver": "flaky?fails=1"}}'});
	until_state($node, $id, 'dead', 'a job is dead');
	$receiver->reset;
	wakes('retry of a dead job does', 'to be dead', qq{SELECT jobq.retry('$id')});
	$id = push_job($node, q{'hook', type => 'to be dead', options => '{"max_attempts": 1, "headers": {"receiver": "flaky?fails=1"}}'});
	until_state($node, $id, 'dead', 'another job is dead');
	$receiver->reset;
	wakes('retry_dead does', 'to be dead', q{SELECT jobq.retry_dead('hook')});
}
{
	my $head = push_job($node, q{'hook', group_key => 'g', delay => '1 day', type => 'head'});
	push_job($node, q{'hook', group_key => 'g', type => 'second'});
	wakes('a push without a group does', 'no group', q{SELECT jobq.push('hook', type => 'no group')});
	is(sql(q{SELECT state FROM jobq.jobs WHERE type = 'second'}), 'queued', 'a head that is scheduled holds its group');
	wakes('cancel of a group\'s head does, for the next one', 'second', qq{SELECT jobq.cancel('$head')});

	$head = push_job($node, q{'hook', group_key => 'g', options => '{"headers": {"receiver": "hang"}}', type => 'hanging'});
	push_job($node, q{'hook', group_key => 'g', type => 'third'});
	$receiver->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request that hangs');
	is(sql(q{SELECT state FROM jobq.jobs WHERE type = 'third'}), 'queued', 'a head that runs holds its group');
	wakes('complete of a group\'s head by SQL does, for the next one', 'third', qq{SELECT jobq.complete('$head', 1)});

	$head = push_job($node, q{'hook', group_key => 'g', options => '{"headers": {"receiver": "hang"}}', type => 'hanging'});
	push_job($node, q{'hook', group_key => 'g', type => 'fourth'});
	$receiver->wait_for(sub { $_[0]{in_flight} == 2 }, 'another');
	wakes('bury of a group\'s head does, for the next one', 'fourth', qq{SELECT jobq.bury('$head', 1)});

	$head = push_job($node, q{'hook', group_key => 'g', options => '{"headers": {"receiver": "flaky?fails=1"}}', type => 'flaky'});
	wakes('a retry of a group\'s head and then the next one do', 'fifth', q{SELECT jobq.push('hook', group_key => 'g', type => 'fifth')});
}
{
	my $url = $receiver->url('/elsewhere');
	sql(q{SELECT jobq.create_queue('pulled')});
	sql(q{SELECT jobq.push('pulled', type => 'was pulled')});
	wakes('an endpoint for a queue does', 'was pulled', q{SELECT jobq.alter_queue('pulled', endpoint => 'hook')});
	sql(q{SELECT jobq.alter_queue('pulled', options => '{"endpoint": null}')});

	sql(q{UPDATE jobq.queue SET paused = true WHERE name = 'hook'});
	sql(q{SELECT jobq.push('hook', type => 'unpaused')});
	wakes('an UPDATE of a queue\'s row does', 'unpaused', q{UPDATE jobq.queue SET paused = false WHERE name = 'hook'});
	sql(q{UPDATE jobq.endpoint SET enabled = false WHERE name = 'hook'});
	sql(q{SELECT jobq.push('hook', type => 'enabled')});
	wakes('an UPDATE of an endpoint\'s row does', 'enabled', q{UPDATE jobq.endpoint SET enabled = true WHERE name = 'hook'});

	sql(q{UPDATE jobq.queue SET max_running = 1 WHERE name = 'hook'});
	my $stuck = push_job($node, q{'hook', options => '{"headers": {"receiver": "hang"}}', type => 'hanging, limited'});
	sql(q{SELECT jobq.push('hook', type => 'limited')});
	until_state($node, $stuck, 'running', 'a queue has reached its limit');
	wakes('cancel of a job in a limited queue does', 'limited', qq{SELECT jobq.cancel('$stuck')});
	$stuck = push_job($node, q{'hook', options => '{"headers": {"receiver": "hang"}}', type => 'hanging, limited'});
	sql(q{SELECT jobq.push('hook', type => 'limit lifted')});
	until_state($node, $stuck, 'running', 'a queue has reached its limit again');
	sql(q{UPDATE jobq.queue SET max_running = NULL WHERE name = 'hook'});
	until_ok(sub { grep { ($_->{type} // '') eq 'limit lifted' } $receiver->requests }, 'a lifted limit does', $soon);
	sql(qq{SELECT jobq.cancel('$stuck')});

	sql(q{SELECT jobq.create_queue('only me', endpoint => 'hook')});
	wakes('a queue that is new is known', 'first', q{SELECT jobq.push('only me', type => 'first')});
	wakes('also in the transaction that makes it', 'very first', q{
		BEGIN; SELECT jobq.create_queue('newer', endpoint => 'hook'); SELECT jobq.push('newer', type => 'very first'); COMMIT});
}
note(sprintf 'from the statement to its request, as seen from here: at least %.0f ms, at most %.0f ms',
	1000 * min(@took), 1000 * max(@took));
cmp_ok(min(@took), '<', 1, 'a wake-up takes less than a second');
is(scalar(grep { ($_->{type} // '') eq 'undone' } $receiver->requests), 0, 'nothing that was rolled back is delivered');

{
	# As the receiver sees it, and with nothing else to do.
	$receiver->reset;
	for my $n (1 .. 20)
	{
		push_job($node, q{'hook', jsonb_build_object('pushed_at', clock_timestamp())});
		$receiver->wait_for(sub { $_[0]{requests} >= $n }, 'a request');
	}
	my $latency = $receiver->stats->{latency};
	note(sprintf 'from push to arrival: at least %.1f ms, median %.1f ms, at most %.1f ms', @{$latency}{qw(min median max)});
	cmp_ok($latency->{min}, '<', 20, 'an idle dispatcher delivers within milliseconds');
}

# Workers that LISTEN

my $dispatcher = dispatcher($node);
my $listener = session($node);
sql(q{SELECT jobq.create_queue('pull', options => '{"retry_first": "300 ms", "retry_jitter": 0}')});
$listener->query_safe('LISTEN jobq; LISTEN jobq_pull');

# Waits for a notification on the queue's channel and pulls.
sub told
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @heard;
	until_ok(sub { push @heard, notifications($listener); @heard }, $name, $soon);
	is(scalar(grep { $_->[0] ne 'jobq_pull' || $_->[1] ne $dispatcher } @heard), 0,
		"$name: on the queue's channel, by the dispatcher");
	return sql(q{SELECT id, attempt FROM jobq.pull('pull')});
}

push_job($node, q{'pull'});
my ($id, $attempt) = split /\|/, told('a worker that listens is told of a push');
is($attempt, 1, 'and gets the job');
sql(qq{SELECT jobq.fail('$id', 1, 'no')});
is(sql(q{SELECT count(*) FROM jobq.pull('pull')}), 0, 'a job that failed waits for its retry');
($id, $attempt) = split /\|/, told('a worker is told when the retry is due');
is($attempt, 2, 'and gets it');
sql(qq{SELECT jobq.complete('$id', 2)});

push_job($node, q{'pull', delay => '500 ms'});
isnt(told('a worker is told when a scheduled job is due'), '', 'and gets it');
push_job($node, q{'pull', delay => '1 day', type => 'later'});
sql(q{SELECT jobq.retry(id) FROM jobq.jobs WHERE type = 'later'});
isnt(told('a worker is told of a job that need not wait any longer'), '', 'and gets it');
($id, $attempt) = split /\|/, sql(q{SELECT jobq.push('pull'); SELECT id, attempt FROM jobq.pull('pull')}) =~ s/\A.*\n//r;
notifications($listener);
sql(qq{SELECT jobq.release('$id', $attempt)});
isnt(told('a worker is told of a job that another gave back'), '', 'and gets it');
{
	my $head = push_job($node, q{'pull', group_key => 'g'});
	isnt(told('a worker is told of the head of a group'), '', 'and gets it');
	push_job($node, q{'pull', group_key => 'g'});
	sql(qq{SELECT jobq.complete('$head', 1)});
	my $next = '';
	until_ok(sub { notifications($listener) && ($next = sql(q{SELECT id FROM jobq.pull('pull')})) ne '' },
		'a worker is told of the next one when the head is completed', $soon);
	($id) = split /\|/, $next;
	sql(qq{SELECT jobq.complete('$id', 1)});
}
{
	# The end of a lease is found by the scan.
	sql(q{SELECT jobq.alter_queue('pull', lease => '200 ms')});
	push_job($node, q{'pull', type => 'lost'});
	isnt(told('a worker is told of a job that another will lose'), '', 'and gets it');
	sql(q{SELECT jobq.alter_queue('pull', lease => '5 min')});
	sql(q{ALTER SYSTEM SET jobq.scan_interval = '100 ms'});
	$node->reload;
	isnt(told('a shorter scan interval takes effect at once: a worker is told of a job whose lease has ended'), '',
		'and gets it');
	sql(q{ALTER SYSTEM RESET jobq.scan_interval});
	$node->reload;
}
sql(q{SELECT jobq.pause('pull')});
wakes('a push elsewhere wakes', 'after pause', q{SELECT jobq.push('hook', type => 'after pause')});
notifications($listener);
push_job($node, q{'pull'});
wakes('another does', 'no pull', q{SELECT jobq.push('hook', type => 'no pull')});
is(scalar(notifications($listener)), 0, 'nobody is told of a job in a paused queue');
sql(q{SELECT jobq.resume('pull')});
isnt(told('a worker is told when it is resumed'), '', 'and gets the job');
sql(q{SELECT jobq.clear('pull'); SELECT jobq.cancel(id) FROM jobq.jobs WHERE queue = 'pull' AND state = 'running'});

for my $round (1 .. 20)
{
	my $pushed = push_job($node, q{'pull'});
	my $until = time + $soon;
	1 until notifications($listener) || time > $until;
	my ($pulled) = split /\|/, sql(q{SELECT id, attempt FROM jobq.pull('pull')});
	is($pulled, $pushed, 'no announcement is lost in twenty rounds') if $round == 20 || $pulled ne $pushed;
	sql(qq{SELECT jobq.complete('$pushed', 1)});
}

# No flood

{
	push_job($node, q{'pull'});
	my $until = time + $soon;
	1 until notifications($listener) || time > $until;
	wakes('a push for a second later wakes then', 'a second', q{SELECT jobq.push('hook', type => 'a second', delay => '1 s')});
	cmp_ok(scalar(notifications($listener)), '<=', 2, 'a job that nobody pulls is not announced again and again');
	sql(q{SELECT jobq.clear('pull')});
}
{
	notifications($listener);
	my $begun = time;
	$node->pgbench('--no-vacuum --client=4 --transactions=500', 0, [qr/processed: 2000/], [qr/^$/],
		'2000 pushes, each in a transaction of its own', { 'push' => q{SELECT jobq.push('pull');} });
	my @heard;
	push @heard, notifications($listener) until @heard;
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'pull' AND state = 'queued'}, 2000, 'all of them wait');
	push @heard, notifications($listener);
	my $took = time - $begun;
	note(sprintf '%d notifications in %.1f s', scalar @heard, $took);
	cmp_ok(scalar @heard, '<=', 10 + $took * 150, 'announcements are about a hundred a second at most');
	cmp_ok(scalar @heard, '<', 1000, 'many pushes share one');
	is(scalar(grep { $_->[0] ne 'jobq_pull' || $_->[1] ne $dispatcher } @heard), 0, 'pushes send no NOTIFY of their own');
	sql('NOTIFY jobq');
	is(scalar(grep { $_->[0] eq 'jobq' } notifications($listener)), 1, 'the channel jobq is for those who notify by hand');
}
is(sql('SELECT pg_notification_queue_usage() < 0.001'), 't', 'no notifications pile up');

close_session($listener);
is(occurrences($node, qr/(?:ERROR|FATAL|PANIC|LOG):  jobq dispatcher/), 0, 'the dispatcher met no error');
done_testing();
