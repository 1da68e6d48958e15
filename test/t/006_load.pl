# Many at once: deliveries by the ten thousand, and pushers and pullers that get in each other's way.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use IPC::Run;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;

my $node = jobq_node('load', conf => [ 'jobq.scan_interval = 1h', 'shared_buffers = 128MB', 'max_prepared_transactions = 20' ]);
my $receiver = Receiver->start(keep => 0);

sub sql { return $node->safe_psql('postgres', $_[0]) }

# pgbench with these scripts, beside others.
sub start_pgbench
{
	my ($name, $scripts, @options) = @_;
	my @files;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	for my $script (sort keys %$scripts)
	{
		my ($title, $weight) = split /@/, $script;
		append_to_file("$dir/$name.$title", $scripts->{$script} =~ s/^\t+//gmr);
		push @files, '-f', "$dir/$name.$title\@$weight";
	}
	my %run = (out => '', err => '');
	$run{handle} = IPC::Run::start([ 'pgbench', '--no-vacuum', @options, @files, $node->connstr('postgres') ],
		'<', \'', '>', \$run{out}, '2>', \$run{err}, IPC::Run::timeout($timeout));
	return \%run;
}

# What went wrong, if anything.
sub finished
{
	my ($run) = @_;
	$run->{handle}->finish;
	return '' if $run->{err} eq '' && $run->{out} =~ /actually processed: (\d+)\/\1\b/;
	return $run->{err} . $run->{out};
}

# 10,000 pushed at once

{
	# Timeouts so long that none of their timers could help a dispatcher out.
	hook($node, 'flood', $receiver->url('/ok'), endpoint => { timeout => '1 h', connect_timeout => '1 h' });
	sql(q{
		SELECT count(*) FROM jobq.push_many('flood',
			(SELECT array_agg(jsonb_build_object('n', n, 'pushed_at', clock_timestamp())) FROM generate_series(1, 10000) AS n))});
	until_is($node, q{SELECT state, count(*) FROM jobq.jobs WHERE queue = 'flood' GROUP BY 1}, 'completed|10000',
		'10,000 jobs pushed at once are all completed');
	my $stats = $receiver->stats;
	is($stats->{distinct}, 10000, 'and have all arrived');
	is($stats->{requests}, sql(q{SELECT sum(attempt) FROM jobq.jobs WHERE queue = 'flood'}), 'each as often as it was tried');
	is(sql(q{SELECT max(attempt) FROM jobq.jobs WHERE queue = 'flood'}), 1, 'which is once');
	note(sprintf 'from push to arrival: median %.0f ms, 99th percentile %.0f ms, all within %.0f ms',
		@{ $stats->{latency} }{qw(median p99 max)});
	is(sql(q{SELECT count(*) FROM jobq.job}), 0, 'nothing is left behind');
}

# 10,000 pushed one by one, while deliveries run

{
	$receiver->reset;
	hook($node, 'stream', $receiver->url('/ok'), endpoint => { timeout => '1 h', connect_timeout => '1 h' });
	$node->pgbench('--no-vacuum --client=8 --transactions=1250', 0, [qr/processed: 10000/], [qr/^$/], '10,000 pushes by 8 clients',
		{ stream => q{SELECT jobq.push('stream', jsonb_build_object('pushed_at', clock_timestamp()));} });
	until_is($node, q{SELECT state, count(*) FROM jobq.jobs WHERE queue = 'stream' GROUP BY 1}, 'completed|10000',
		'10,000 jobs pushed one by one are all completed');
	my $stats = $receiver->stats;
	is("$stats->{distinct} $stats->{requests}", '10000 10000', 'and arrive once each');
	note(sprintf 'from push to arrival: median %.1f ms, 99th percentile %.1f ms, all within %.1f ms',
		@{ $stats->{latency} }{qw(median p99 max)});
}

# Pushes that commit late, go back, and come in any order

{
	$receiver->reset;
	hook($node, 'late', $receiver->url('/ok'), endpoint => { max_in_flight => 20 },
		queue => { retry_first => '10 ms', retry_longest => '50 ms' });
	my $one = q{SELECT jobq.push('late', priority => :priority, delay => '1 ms'::interval * :delay,
		options => '{"headers": {"receiver": "flaky?fails=:fails"}}') FROM generate_series(1, :several)};
	my $random = q{
		\set priority random(-2, 2)
		\set delay random(0, 3) * random(0, 100)
		\set fails random(0, 4) / 4
		\set several random(1, 3)
		\set wait random(0, 4000)
	};
	my %scripts = (
		'at_once@4' => qq{$random $one;},
		'late@4' => qq{$random BEGIN;\n$one;\n\\sleep :wait us\nCOMMIT;},
		'half@2' => qq{$random BEGIN;\n$one;\nSAVEPOINT a;\n$one;\nROLLBACK TO a;\n\\sleep :wait us\nCOMMIT;},
		'undone@1' => qq{$random BEGIN;\n$one;\n\\sleep :wait us\nROLLBACK;},
		'prepared@1' => qq{$random BEGIN;\n$one;\nPREPARE TRANSACTION 'p:client_id';\n\\sleep :wait us\nCOMMIT PREPARED 'p:client_id';},
		'paused@1' => qq{SELECT jobq.pause('late');\nSELECT jobq.resume('late');},
	);
	is(finished(start_pgbench('late', \%scripts, '--client=8', '--transactions=400')), '', '8 clients push in all sorts of ways');
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'late' AND state <> 'completed'}, 0,
		'what they pushed is all delivered, without a scan', seconds => 50);
	is($receiver->stats->{requests}, sql(q{SELECT sum(attempt) FROM jobq.jobs WHERE queue = 'late'}), 'each as often as it was tried');
	is($receiver->stats->{distinct}, sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'late'}), 'and nothing else');
	note(sprintf '%s jobs, %s attempts', split /\|/, sql(q{SELECT count(*), sum(attempt) FROM jobq.jobs WHERE queue = 'late'}));
}

# Pushers and pullers

# Keeps what they said, each in the transaction that did it.
sql(q{
	CREATE UNLOGGED TABLE pushed (id uuid, client int, unique_key text);
	CREATE UNLOGGED TABLE ended (id uuid, how text);
	SELECT jobq.create_queue('work', max_attempts => 10000, options => '{"retry_first": "0 s", "max_running": 40}')});

# Groups of a client's own, in which its pushes have an order; groups that all push to; and neither. A
# unique key goes with a group, which a push that replaces another therefore does not change.
my %pushers = (
	'own_group@3' => q{
		\set group random(1, 3)
		INSERT INTO pushed SELECT jobq.push('work', group_key => 'own ' || :client_id || ' ' || :group), :client_id;},
	'shared_group@3' => q{
		\set group random(1, 5)
		INSERT INTO pushed SELECT jobq.push('work', group_key => 'shared ' || :group, priority => :group), :client_id;},
	'shared_group_late@1' => q{
		\set group random(1, 5)
		BEGIN;
		INSERT INTO pushed SELECT jobq.push('work', group_key => 'shared ' || :group), :client_id;
		SELECT pg_sleep(0.005);
		COMMIT;},
	'unique_skip@2' => q{
		\set key random(1, 20)
		INSERT INTO pushed SELECT jobq.push('work', unique_key => 'key ' || :key, group_key => 'shared ' || :key % 5 + 1),
			:client_id, 'key ' || :key;},
	'unique_replace@2' => q{
		\set key random(1, 20)
		INSERT INTO pushed SELECT jobq.push('work', unique_key => 'key ' || :key, group_key => 'shared ' || :key % 5 + 1,
			options => '{"on_conflict": "replace"}'), :client_id, 'key ' || :key;},
	'many@1' => q{
		INSERT INTO pushed SELECT jobq.push_many('work', '{"{}", "{}", "{}"}', group_keys => '{NULL, shared 3, shared 2}',
			unique_keys => '{NULL, key 2, key 1}'), :client_id;},
	'undone@1' => q{
		BEGIN;
		SELECT jobq.push('work', group_key => 'shared 1', unique_key => 'key 1');
		ROLLBACK;},
);
my %pullers = (
	'complete@6' => q{
		SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(attempt), '{}') AS attempts FROM jobq.pull('work', 5) \gset
		INSERT INTO ended SELECT jobq.complete_many(':ids', ':attempts'), 'completed';},
	'fail@2' => q{
		SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(attempt), '{}') AS attempts FROM jobq.pull('work', 3) \gset
		SELECT count(*) FROM jobq.fail_many(':ids', ':attempts', retry_in => '0 s');},
	'release@1' => q{
		SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(attempt), '{}') AS attempts FROM jobq.pull('work', 3) \gset
		SELECT count(*) FROM jobq.release_many(':ids', ':attempts');},
	'undone@1' => q{
		BEGIN;
		SELECT count(*) FROM jobq.pull('work', 3);
		ROLLBACK;},
	'late@1' => q{
		BEGIN;
		SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(attempt), '{}') AS attempts FROM jobq.pull('work', 3) \gset
		SELECT pg_sleep(0.005);
		COMMIT;
		INSERT INTO ended SELECT jobq.complete_many(':ids', ':attempts'), 'completed';},
);

{
	my $pushing = start_pgbench('push', \%pushers, '--client=8', '--transactions=1000');
	my $pulling = start_pgbench('pull', \%pullers, '--client=4', '--transactions=2000');
	is(join('', map { finished($_) } $pushing, $pulling), '', 'pushers and pullers meet no error');
	# A job that fails while a newer one waits for its key is cancelled: that one is to do its work.
	my $left = q{SELECT count(*) FROM jobq.jobs WHERE queue = 'work' AND state <> 'completed'
		AND (state <> 'cancelled' OR unique_key IS NULL OR error NOT LIKE 'a newer job waits for its unique key%')};
	note(sprintf '%s jobs are left when the pushers are done', sql($left));
	my ($round, $errors) = (0, '');
	$errors .= finished(start_pgbench('pull', \%pullers, '--client=4', '--transactions=1000')) while sql($left) && ++$round < 40;
	is($errors, '', 'nor do those that pull the rest');

	is(sql($left), 0, 'all jobs come to their end')
	  || diag(sql($left =~ s/count\(\*\)/*/r . ' LIMIT 10'));
	is(sql(q{SELECT count(*) FROM pushed AS p WHERE NOT EXISTS (SELECT FROM jobq.jobs AS j WHERE j.id = p.id)}), 0,
		'no committed push is lost');
	is(sql(q{SELECT count(*) FROM jobq.jobs AS j WHERE queue = 'work' AND NOT EXISTS (SELECT FROM pushed AS p WHERE p.id = j.id)}), 0,
		'no push that was rolled back is there');
	is(sql(q{SELECT count(*) - count(DISTINCT id) FROM ended}), 0, 'no job is completed twice');
	is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'work' AND state = 'completed'}), sql(q{SELECT count(*) FROM ended}),
		'each that is completed is once');
	is(sql(q{SELECT count(*) FROM (SELECT id FROM pushed WHERE unique_key IS NULL GROUP BY 1 HAVING count(*) > 1) AS p
			JOIN jobq.jobs USING (id) WHERE jobs.unique_key IS NULL}), 0, 'each push without a unique key is a job of its own');

	sql(q{
		CREATE TABLE run AS
			SELECT a.id, a.started_at, a.finished_at, j.group_key, j.unique_key, f.seq
			FROM jobq.attempts AS a JOIN jobq.jobs AS j USING (id) JOIN jobq.finished AS f USING (id)
			WHERE j.queue = 'work'});
	note(sprintf '%s attempts at %s jobs, in %s groups', split /\|/, sql(q{SELECT count(*), count(DISTINCT id), count(DISTINCT group_key) FROM run}));
	cmp_ok(sql(q{SELECT count(*) FROM run WHERE group_key IS NOT NULL}), '>', 2000, 'groups had something to do');
	my $beside = q{
		FROM (
			SELECT *, max(finished_at) OVER (PARTITION BY group_key ORDER BY started_at
				ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS other_finished_at
			FROM run WHERE group_key IS NOT NULL) AS r
		WHERE started_at < other_finished_at};
	is(sql("SELECT count(*) $beside"), 0, 'two jobs of one group never run at once')
	  || diag(sql("SELECT * $beside LIMIT 10"));
	is(sql(q{
			SELECT count(*) FROM (
				SELECT seq < max(seq) OVER (PARTITION BY group_key ORDER BY started_at
					ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS out_of_order
				FROM run WHERE group_key LIKE 'own %') AS r
			WHERE out_of_order}), 0, 'the jobs of a group run in the order of their pushes');
	is(sql(q{
			SELECT count(*) FROM (
				SELECT id, started_at, lead(started_at) OVER (PARTITION BY id ORDER BY started_at) AS next, finished_at FROM run) AS r
			WHERE next < finished_at}), 0, 'no job runs twice at once');
	# Starts and ends in their order: +1, -1.
	cmp_ok(sql(q{
			SELECT max(running) FROM (
				SELECT sum(change) OVER (ORDER BY at, change) AS running
				FROM (SELECT started_at, 1 FROM run UNION ALL SELECT finished_at, -1 FROM run) AS c (at, change)) AS r}),
		'<=', 40, 'no more jobs run at once than the queue allows');
}

is(occurrences($node, qr/(?:ERROR|FATAL|PANIC|LOG):  (?:jobq dispatcher|deadlock)/), 0, 'the dispatcher met no error');
done_testing();
