# Launcher and dispatchers: where they run, what makes them come and go, and what they leave alone.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use List::Util qw(max min sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;
use Time::HiRes qw(time);

my $node = jobq_node('life',
	conf => [ 'jobq.scan_interval = 1h', 'jobq.drain_timeout = 100ms', 'max_worker_processes = 30',
		'restart_after_crash = on' ],
	init => [ allows_streaming => 1 ]);
my $receiver = Receiver->start;

sub sql { return $node->safe_psql($_[1] // 'postgres', $_[0]) }

sub dispatchers_in
{
	my ($database) = @_;
	return sql(qq{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'jobq dispatcher' AND datname = '$database'});
}

sub until_none_in
{
	my ($database, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_is($node, qq{
		SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'jobq dispatcher' AND datname = '$database'}, 0, $name);
}

# A database with the extension and a queue "hook" that delivers.
sub database
{
	my ($name, $options) = @_;
	sql("CREATE DATABASE $name " . ($options // ''));
	sql('CREATE EXTENSION jobq', $name);
	hook($node, 'hook', $receiver->url("/$name"), database => $name);
	dispatcher($node, database => $name);
	return;
}

sub delivers
{
	my ($database, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $id = push_job($node, q{'hook'}, $database);
	until_state($node, $id, 'completed', $name, database => $database);
	return;
}

hook($node, 'hook', $receiver->url('/postgres'));
delivers('postgres', 'the first database delivers');

# CREATE and DROP EXTENSION

{
	my @took;
	sql("CREATE DATABASE extra$_") for 1 .. 4;
	for my $n (1 .. 4)
	{
		my $begun = time;
		sql('CREATE EXTENSION jobq', "extra$n");
		dispatcher($node, database => "extra$n");
		push @took, time - $begun;
	}
	note("from CREATE EXTENSION to a dispatcher that runs: @took s");
	cmp_ok(min(@took), '<', 1, 'a dispatcher runs within a second of CREATE EXTENSION, without a restart');
	cmp_ok(max(@took), '<', 8, 'long before the launcher would look again by itself');
	for my $n (1 .. 4)
	{
		hook($node, 'hook', $receiver->url("/extra$n"), database => "extra$n");
		push_job($node, q{'hook'}, "extra$n");
	}
	until_ok(sub {
		my %paths = map { $_->{path} => 1 } $receiver->requests;
		4 == grep { $paths{"/extra$_"} } 1 .. 4;
	}, 'several databases deliver side by side');
	is(sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'jobq dispatcher'}), 5, 'with a dispatcher in each');

	sql('CREATE DATABASE plain');
	sql('CREATE TABLE t ()', 'plain');
	is(sql(q{BEGIN; CREATE EXTENSION jobq; ROLLBACK; SELECT count(*) FROM pg_extension WHERE extname = 'jobq'}, 'plain'), 0,
		'a CREATE EXTENSION may be rolled back');
	sql('CREATE DATABASE later');
	database('last');
	until_none_in('plain', 'no dispatcher stays in a database without the extension');
	is(sql(q{SELECT count(*) FROM jobq.status() WHERE database = 'plain'}), 0, 'and jobq.status() does not list it');
}
{
	my $own = Receiver->start;
	hook($node, 'hanging', $own->url('/hang'), database => 'extra1');
	push_job($node, q{'hanging'}, 'extra1');
	$own->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request in flight');
	sql('DROP EXTENSION jobq CASCADE', 'extra1');
	until_none_in('extra1', 'the dispatcher goes with DROP EXTENSION, also with a job in flight');
	sql('CREATE EXTENSION jobq', 'extra1');
	hook($node, 'hook', $receiver->url('/again'), database => 'extra1');
	delivers('extra1', 'another CREATE EXTENSION starts another');
	my $pid = dispatcher($node, database => 'extra1');
	sql('BEGIN; DROP EXTENSION jobq; ROLLBACK', 'extra1');
	delivers('extra1', 'a DROP EXTENSION that is rolled back changes nothing');
	sql('BEGIN; DROP EXTENSION jobq; CREATE EXTENSION jobq; COMMIT', 'extra1');
	hook($node, 'hook', $receiver->url('/again'), database => 'extra1');
	delivers('extra1', 'DROP and CREATE in one transaction leave one that delivers');
	is(dispatchers_in('extra1'), 1, 'and only one');
}
{
	sql(q{UPDATE pg_extension SET extversion = '0.0.0' WHERE extname = 'jobq'}, 'extra1');
	sql('SELECT pg_terminate_backend(' . dispatcher($node, database => 'extra1') . ')');
	until_is($node, q{SELECT state FROM jobq.status() WHERE database = 'extra1'}, 'incompatible',
		'no dispatcher works on tables of another version');
	like(sql(q{SELECT message FROM jobq.status() WHERE database = 'extra1'}), qr/0\.0\.0.*ALTER EXTENSION/,
		'and jobq.status() says what to do');
	sql(q{UPDATE pg_extension SET extversion = (SELECT default_version FROM pg_available_extensions WHERE name = 'jobq')
		WHERE extname = 'jobq'}, 'extra1');
	sql(q{SET client_min_messages = error; ALTER EXTENSION jobq UPDATE}, 'extra1');
	until_running($node, 'extra1', 'it starts after ALTER EXTENSION ... UPDATE');
}

# What is set for a database, a role or everybody is not meant for the dispatcher

{
	my $pid = dispatcher($node, database => 'extra4');
	my @settings = ('search_path = public', 'default_transaction_read_only = on', 'default_transaction_isolation = serializable',
		'statement_timeout = 1', 'lock_timeout = 1', 'idle_in_transaction_session_timeout = 1', 'enable_indexscan = off',
		'synchronous_commit = off', q{DateStyle = 'German'}, q{IntervalStyle = 'sql_standard'}, q{TimeZone = 'Asia/Kolkata'},
		'quote_all_identifiers = on', 'row_security = off', 'check_function_bodies = off', q{bytea_output = 'escape'},
		'extra_float_digits = -15', 'session_replication_role = replica');
	sql("ALTER DATABASE extra4 SET $_") for @settings;
	sql("SELECT pg_terminate_backend($pid)");
	until_is($node, qq{SELECT pid <> $pid FROM jobq.status() WHERE database = 'extra4' AND state = 'running'}, 't',
		'a dispatcher starts whatever is set for its database');
	$pid = sql(q{SELECT pid FROM jobq.status() WHERE database = 'extra4'});
	# Not for the sessions of this test, please.
	sql('ALTER DATABASE extra4 RESET ALL');
	my $id = push_job($node, q{'hook', options => '{"max_attempts": 2, "headers": {"receiver": "flaky?fails=1"}}'}, 'extra4');
	until_state($node, $id, 'completed', 'and delivers and retries', database => 'extra4');
	is(dispatcher_pid($node, 'extra4'), $pid, 'without a fall');
}

# What jobq.status() says

{
	my $own = Receiver->start;
	hook($node, 'status', $own->url('/hang'), database => 'extra2', queue => { max_attempts => 1 });
	my $pid = dispatcher($node, database => 'extra2');
	sql(q{SELECT jobq.push('status') FROM generate_series(1, 3);
		SELECT jobq.push('status', options => '{"headers": {"receiver": "ok"}}') FROM generate_series(1, 2);
		SELECT jobq.push('status', options => '{"headers": {"receiver": "fail"}}')}, 'extra2');
	until_is($node, q{SELECT in_flight, delivered >= 2, failed FROM jobq.status() WHERE database = 'extra2'}, '3|t|1',
		'jobq.status() counts what is in flight, delivered and failed');
	is(sql(q{
			SELECT s.state, s.since < clock_timestamp(), s.message IS NULL, a.datname
			FROM jobq.status() AS s JOIN pg_stat_activity AS a USING (pid) WHERE s.database = 'extra2'}),
		'running|t|t|extra2', 'and names each dispatcher with its process');
	is(sql(q{
			SELECT s.state, a.backend_type FROM jobq.status() AS s JOIN pg_stat_activity AS a USING (pid)
			WHERE s.component = 'launcher'}), 'running|jobq launcher', 'and the launcher');
	sql(q{CREATE ROLE visitor LOGIN});
	sql(q{GRANT USAGE ON SCHEMA jobq TO visitor; GRANT EXECUTE ON FUNCTION jobq.status TO visitor}, 'extra2');
	my ($rc, $seen) = $node->psql('extra2', q{SELECT string_agg(component || ' ' || coalesce(database, ''), ', ') FROM jobq.status()},
		extra_params => [ '-U', 'visitor' ]);
	is($seen, 'launcher , dispatcher extra2', 'who is not a superuser sees the own database only');
	sql(q{SELECT jobq.drop_queue('status', force => true)}, 'extra2');
}

# DROP, RENAME, MOVE, COPY a database with a dispatcher

{
	my $begun = time;
	sql('DROP DATABASE extra2');
	is(sql(q{SELECT count(*) FROM jobq.status() WHERE database = 'extra2'}), 0, 'a database with a dispatcher may be dropped');

	database('renamed');
	sql('ALTER DATABASE renamed RENAME TO other_name');
	delivers('other_name', 'it may be renamed, and goes on');
	is(sql(q{SELECT state FROM jobq.status() WHERE database = 'other_name'}), 'running', 'under its new name');

	my $place = PostgreSQL::Test::Utils::tempdir_short();
	sql("CREATE TABLESPACE elsewhere LOCATION '$place'");
	sql('ALTER DATABASE other_name SET TABLESPACE elsewhere');
	delivers('other_name', 'it may be moved to another tablespace, and goes on');
	sql('DROP DATABASE other_name');

	sql('CREATE ROLE owner LOGIN CREATEDB');
	database('owned', 'OWNER owner');
	my ($rc, $out, $err) = $node->psql('postgres', 'DROP DATABASE owned', extra_params => [ '-U', 'owner' ]);
	is("$rc$err", '0', 'its owner may drop it without being a superuser');
	database('owned', 'OWNER owner');
	($rc, $out, $err) = $node->psql('postgres', 'DROP DATABASE owned WITH (FORCE)', extra_params => [ '-U', 'owner' ]);
	is("$rc$err", '0', 'also with FORCE');

	my $pid = dispatcher($node, database => 'extra3');
	($rc, $out, $err) = $node->psql('postgres', 'DROP DATABASE extra3', extra_params => [ '-U', 'owner' ]);
	like($err, qr/must be owner of database/, 'who is not the owner may not');
	is(dispatcher_pid($node, 'extra3'), $pid, 'and does not get as far as to stop the dispatcher');
	($rc, $out, $err) = $node->psql('postgres', 'ALTER DATABASE extra3 RENAME TO stolen', extra_params => [ '-U', 'owner' ]);
	isnt($rc, 0, 'nor rename it');
	is(dispatcher_pid($node, 'extra3'), $pid, 'which leaves the dispatcher alone too');
	my $visitor = session($node, 'extra3');
	($rc, $out, $err) = $node->psql('postgres', 'DROP DATABASE extra3');
	like($err, qr/being accessed by other users/, 'a DROP DATABASE fails while a client is connected');
	unlike($err, qr/There are 2/, 'the dispatcher is not what it names');
	close_session($visitor);
	delivers('extra3', 'the dispatcher comes back after it');

	sql('ALTER DATABASE extra3 IS_TEMPLATE true');
	until_none_in('extra3', 'no dispatcher stays in a template');
	sql('ALTER DATABASE extra3 IS_TEMPLATE false');
	delivers('extra3', 'it comes back when that is a template no more');
	sql('ALTER DATABASE extra3 ALLOW_CONNECTIONS false');
	until_none_in('extra3', 'no dispatcher stays where connections are not allowed');
	sql('ALTER DATABASE extra3 ALLOW_CONNECTIONS true');
	delivers('extra3', 'it comes back when they are');
}

# Copies wait for jobq.adopt()

# What the receiver gets from a copy: the ids of these.
sub adopted
{
	my ($database, $name, @ids) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	until_is($node, q{SELECT state FROM jobq.status() WHERE database = current_database()}, 'foreign',
		"$name: the dispatcher sees that the jobs are another database's", database => $database);
	like(sql(q{SELECT message FROM jobq.status() WHERE database = current_database()}, $database), qr/jobq\.adopt\(\)/,
		"$name: jobq.status() says what to do");
	push @ids, push_job($node, q{'hook', type => 'new in copy'}, $database);
	sql(q{SELECT jobq.resume('hook'); NOTIFY jobq}, $database);
	delivers('postgres', "$name: another database delivers meanwhile");
	is(sql(q{SELECT count(*) FROM jobq.attempts}, $database), 0, "$name: no delivery is tried");
	$receiver->reset;
	sql('SELECT jobq.adopt()', $database);
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE state = 'completed'}, scalar @ids,
		"$name: jobq.adopt() starts the deliveries", database => $database);
	is(join(' ', sort map { $_->{id} } $receiver->requests), join(' ', sort @ids), "$name: each job is delivered once");
	return;
}
{
	database('original');
	sql(q{SELECT jobq.pause('hook')}, 'original');
	my @ids = split /\n/, sql(q{SELECT jobq.push('hook') FROM generate_series(1, 5)}, 'original');
	my $pid = dispatcher($node, database => 'original');
	sql('CREATE DATABASE copied TEMPLATE original');
	pass('a database with a dispatcher may be a template');
	isnt(dispatcher($node, database => 'original', not => $pid), '', 'its dispatcher comes back');
	adopted('copied', 'CREATE DATABASE ... TEMPLATE', @ids);
	is(sql(q{SELECT count(*) FROM jobq.jobs WHERE state = 'queued'}, 'original'), 5, 'the original keeps its jobs');
}
{
	# What a dump is to carry, besides the waiting jobs of before.
	hook($node, 'second', $receiver->url('/second'), database => 'original', endpoint => { headers => { 'x-a' => 'b' } },
		queue => { max_attempts => 1, types => { a => { max_attempts => 7 } } });
	my $dead = push_job($node, q{'second', options => '{"headers": {"receiver": "fail"}}'}, 'original');
	my $done = push_job($node, q{'second'}, 'original');
	until_state($node, $dead, 'dead', 'a job is dead', database => 'original');
	until_state($node, $done, 'completed', 'a job is completed', database => 'original');
	my $late = push_job($node, q{'second', delay => '1 day', group_key => 'g', unique_key => 'u', priority => 3}, 'original');
	my $queries = join ";\n",
	  q{SELECT * FROM jobq.jobs ORDER BY id}, q{SELECT * FROM jobq.attempts ORDER BY id, attempt},
	  q{SELECT * FROM jobq.queue ORDER BY id}, q{SELECT * FROM jobq.endpoint ORDER BY id};
	my $before = sql($queries, 'original');

	my $dir = PostgreSQL::Test::Utils::tempdir();
	$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", $node->connstr('original') ], 'the database may be dumped');
	for my $jobs (1, 4)
	{
		my $database = "restored$jobs";
		sql("CREATE DATABASE $database");
		$receiver->reset;
		$node->command_ok([ 'pg_restore', '--exit-on-error', '-j', $jobs, '-d', $node->connstr($database), "$dir/dump" ],
			"and restored by $jobs jobs");
		until_is($node, q{SELECT state FROM jobq.status() WHERE database = current_database()}, 'foreign',
			'the restored database does not deliver', database => $database);
		is(sql($queries, $database), $before, 'it has the jobs, with their attempts, and the settings');
		is($receiver->stats->{requests}, 0, 'nothing was delivered on the way');
		is(sql(q{SELECT jobq.create_queue('third'); SELECT jobq.create_endpoint('third', 'http://127.0.0.1/');
				SELECT count(DISTINCT id) FROM jobq.queue; SELECT count(DISTINCT id) FROM jobq.endpoint}, $database) =~ s/^\n+//r,
			"3\n3", 'ids of new queues and endpoints do not collide');
		is(sql(q{SELECT jobq.push('third'); SELECT id = (SELECT id FROM jobq.job ORDER BY seq DESC LIMIT 1) FROM jobq.jobs WHERE queue = 'third'},
				$database) =~ s/.*\n//r, 't', 'a new job comes after the restored ones');
	}
	sql(q{SELECT jobq.clear('third'); SELECT jobq.drop_queue('third'); SELECT jobq.cancel(id) FROM jobq.jobs WHERE queue = 'second' AND state = 'queued';
		SELECT jobq.clear('second', 'cancelled'), jobq.clear('second', 'completed'), jobq.clear('second', 'dead')}, 'restored1');
	my @waiting = split /\n/, sql(q{SELECT id FROM jobq.jobs WHERE queue = 'hook'}, 'original');
	adopted('restored1', 'a restored dump', @waiting);

	# Jobs that are due, and settings with which they would go out.
	database('due');
	my $own = Receiver->start;
	hook($node, 'due', $own->url('/hang'), database => 'due', endpoint => { max_in_flight => 1 });
	sql(q{SELECT jobq.push('due') FROM generate_series(1, 50)}, 'due');
	$own->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request in flight');
	$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/due", $node->connstr('due') ], 'a database with due jobs may be dumped');
	for my $n (1 .. 4)
	{
		sql('CREATE DATABASE restored_due');
		$node->command_ok([ 'pg_restore', '--exit-on-error', '-j', 4, '-d', $node->connstr('restored_due'), "$dir/due" ],
			'and restored by several jobs, which load its tables in no certain order');
		until_is($node, q{SELECT state FROM jobq.status() WHERE database = 'restored_due'}, 'foreign', 'it does not deliver');
		is(sql(q{SELECT count(*) FROM jobq.attempts}, 'restored_due'), 1, 'nor has it: the one attempt is that of the original');
		sql('DROP DATABASE restored_due');
	}
	sql('CREATE DATABASE restored_due');
	$node->command_ok([ 'pg_restore', '--exit-on-error', '--section=pre-data', '-d', $node->connstr('restored_due'), "$dir/due" ],
		'it may be restored in parts');
	dispatcher($node, database => 'restored_due');
	$node->command_ok([ 'pg_restore', '--exit-on-error', '-a', '-n', 'jobq', '-t', $_, '-d', $node->connstr('restored_due'), "$dir/due" ],
		"$_ at first") for qw(job queue endpoint);
	delivers('postgres', 'another database delivers meanwhile');
	is(sql(q{SELECT count(*) FROM jobq.attempts}, 'restored_due'), 1,
		'nothing was delivered but by the original, though all that a delivery needs is there');
	is($own->stats->{requests}, 1, 'the receiver got what the original sent');
	sql("DROP DATABASE $_") for qw(restored_due due);
	sql("DROP DATABASE $_") for qw(copied restored1 restored4 original);
}

# Neighbours, and idle times

{
	my $own = Receiver->start;
	hook($node, 'busy', $own->url('/hang'), database => 'extra3');
	sql(q{SELECT jobq.push('busy') FROM generate_series(1, 50)}, 'extra3');
	$own->wait_for(sub { $_[0]{in_flight} == 50 }, 'a dispatcher with requests in flight');
	sql('CREATE DATABASE unrelated');
	my $begun = time;
	sql('DROP DATABASE unrelated');
	my $took = time - $begun;
	note("DROP DATABASE beside it: $took s");
	cmp_ok($took, '<', 10, 'a DROP DATABASE elsewhere does not wait for dispatchers, idle or with requests in flight');

	# CPU time in ticks of 10 ms, and how often it was woken.
	my %used;
	my $look = sub {
		for my $pid (split /\n/, sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'jobq%'}))
		{
			my @stat = split / /, slurp_file("/proc/$pid/stat") =~ s/.*\) //sr;
			my ($switches) = slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s*(\d+)/m;
			push @{ $used{$pid} }, [ $stat[11] + $stat[12], $switches ];
		}
	};
	SKIP:
	{
		skip 'there is no /proc', 2 unless -r "/proc/$$/stat";
		sql(q{SELECT jobq.create_queue('unpulled'); SELECT jobq.push('unpulled') FROM generate_series(1, 10)});
		delivers($_, 'a dispatcher has nothing more to do') for 'postgres', 'last';
		sql(q{SELECT jobq.push('hook', delay => '4 s', type => 'time is over')}, 'extra4');
		$look->();
		until_ok(sub { grep { ($_->{type} // '') eq 'time is over' } $receiver->requests }, 'four seconds pass');
		$look->();
		my @both = grep { @$_ == 2 } values %used;
		cmp_ok(scalar @both, '>=', 5, 'launcher and dispatchers were there at the beginning and at the end');
		my @ticks = map { $_->[1][0] - $_->[0][0] } @both;
		my @woken = map { $_->[1][1] - $_->[0][1] } @both;
		note("CPU: @ticks ticks; woken @woken times");
		cmp_ok(max(@ticks), '<', 20, 'none of them used CPU to speak of');
		cmp_ok(max(@woken), '<', 100, 'or was woken without a need');
	}
	sql(q{SELECT jobq.drop_queue('busy', force => true)}, 'extra3');
}

# The launcher

{
	my $pid = dispatcher($node, database => 'last');
	my $launcher = sql(q{SELECT pid FROM jobq.status() WHERE component = 'launcher'});
	sql("SELECT pg_terminate_backend($launcher)");
	until_is($node, qq{SELECT count(*) FROM jobq.status() WHERE component = 'launcher' AND pid <> $launcher AND state = 'running'}, 1,
		'a launcher that is terminated comes back');
	is(dispatcher_pid($node, 'last'), $pid, 'and keeps the dispatchers');
	sql('CREATE DATABASE after_launcher');
	sql('CREATE EXTENSION jobq', 'after_launcher');
	until_running($node, 'after_launcher', 'it finds new ones');
	sql('SELECT pg_terminate_backend(' . dispatcher($node, database => 'last') . ')');
	isnt(dispatcher($node, database => 'last', not => $pid), $pid, 'and restarts dispatchers that it did not start');

	$launcher = sql(q{SELECT pid FROM jobq.status() WHERE component = 'launcher'});
	kill 'KILL', $launcher;
	until_is($node, qq{SELECT count(*) FROM jobq.status() WHERE component = 'launcher' AND pid <> $launcher AND state = 'running'}, 1,
		'one that is killed comes back with the server');
	delivers('last', 'and its dispatchers');
}

# A standby

{
	# A base backup would have to put it in the same place.
	sql('DROP TABLESPACE elsewhere');
	$node->backup('standby');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'standby', has_streaming => 1);
	$standby->start;
	my $own = Receiver->start;
	hook($node, 'promoted', $own->url('/hang'));
	my @ids = split /\n/, sql(q{SELECT jobq.push('promoted', type => 'in flight') FROM generate_series(1, 10)});
	$own->wait_for(sub { $_[0]{in_flight} == 10 }, 'requests in flight');
	sql(sprintf q{SELECT jobq.pause('promoted'); SELECT jobq.alter_endpoint('promoted', '%s')}, $own->url('/ok'));
	push @ids, split /\n/, sql(q{SELECT jobq.push('promoted', type => 'waiting') FROM generate_series(1, 5)});
	$node->wait_for_catchup($standby);
	is($standby->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'jobq%'}), 0,
		'a standby has no dispatcher');
	like($standby->safe_psql('postgres', q{SELECT message FROM jobq.status() WHERE component = 'launcher'}), qr/standby/,
		'and says why');
	$node->stop('immediate');
	$own->wait_for(sub { $_[0]{in_flight} == 0 }, 'the end of the requests');
	$own->reset;
	$standby->promote;
	$standby->safe_psql('postgres', q{SELECT jobq.resume('promoted')});
	until_is($standby, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'promoted' AND state = 'completed'}, 15,
		'a standby that is promoted goes on delivering');
	is(join(' ', sort map { $_->{id} } $own->requests), join(' ', sort @ids), 'each of the jobs, once');
	is($standby->safe_psql('postgres', q{SELECT DISTINCT failures FROM jobq.jobs WHERE queue = 'promoted'}), 0,
		'what the primary had in flight is not charged');
	$standby->stop;
}

# Worker slots are scarce

{
	my $full = jobq_node('full', conf => [ 'max_worker_processes = 2', 'max_logical_replication_workers = 0' ]);
	hook($full, 'hook', $receiver->url('/full'));
	$full->safe_psql('postgres', 'CREATE DATABASE second');
	my $warning = qr/no worker slot for the jobq dispatcher/;
	my $in_second = "WHERE component = 'dispatcher' AND database = 'second'";
	$full->safe_psql('second', 'CREATE EXTENSION jobq');
	until_is($full, "SELECT state FROM jobq.status() $in_second", 'waiting_for_slot',
		'a database for which there is no worker slot waits for one');
	like($full->safe_psql('postgres', "SELECT message FROM jobq.status() $in_second"), qr/raise max_worker_processes/,
		'jobq.status() says what to do');
	hook($full, 'hook', $receiver->url('/second'), database => 'second');
	my $id = push_job($full, q{'hook'}, 'second');
	for my $time (1 .. 2)
	{
		my $since = $full->safe_psql('postgres', "SELECT since FROM jobq.status() $in_second");
		until_is($full, "SELECT since > '$since' AND state = 'waiting_for_slot' FROM jobq.status() $in_second", 't', 'it is tried again');
	}
	is(occurrences($full, $warning), 1, 'the log says so once');
	is($full->safe_psql('second', "SELECT state FROM jobq.jobs WHERE id = '$id'"), 'queued', 'jobs can be pushed and wait');
	delivers_from($full, 'postgres', 'the database that has one delivers');
	$full->safe_psql('postgres', 'DROP EXTENSION jobq');
	until_state($full, $id, 'completed', 'when a slot gets free the waiting database delivers', database => 'second');

	$full->safe_psql('postgres', 'CREATE EXTENSION jobq');
	until_is($full, q{SELECT state FROM jobq.status() WHERE database = 'postgres'}, 'waiting_for_slot', 'now the other waits');
	is(occurrences($full, $warning), 2, 'which the log says too');
	$full->safe_psql('postgres', 'DROP DATABASE second');
	until_running($full, 'postgres', 'a DROP DATABASE frees a slot too');

	$full->append_conf('postgresql.conf', 'max_worker_processes = 0');
	$full->restart;
	is($full->safe_psql('postgres', q{SELECT state, message ~ 'max_worker_processes' FROM jobq.status() WHERE component = 'launcher'}),
		'not running|t', 'without a slot for the launcher jobq.status() says so');
	$full->stop;
}

sub delivers_from
{
	my ($server, $database, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $id = push_job($server, q{'hook'}, $database);
	until_state($server, $id, 'completed', $name, database => $database);
	return;
}

done_testing();
