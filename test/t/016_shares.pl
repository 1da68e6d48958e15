# Thousands of endpoints with a few jobs each, beside one with very many: each gets its share. The
# periodic scan is as good as off.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;
use Time::HiRes qw(time usleep);

my ($endpoints, $queues, $many) = (2000, 200, 100_000);

my $node = jobq_node('shares', conf => [ 'jobq.scan_interval = 1h', 'shared_buffers = 128MB', 'max_wal_size = 4GB' ]);
my $small = Receiver->start(keep => 0);
my $big = Receiver->start(keep => 0);

sub sql { return $node->safe_psql('postgres', $_[0]) }

# Runs it, and says how long that took.
sub timed
{
	my ($what, $query) = @_;
	my $start = time;
	my $out = sql($query);
	note(sprintf '%s: %.1f s', $what, time - $start);
	return $out;
}

sub deliver
{
	my ($on) = @_;
	sql("ALTER SYSTEM SET jobq.deliver = $on");
	$node->reload;
	until_is($node, q{SELECT state FROM jobq.status() WHERE component = 'dispatcher'}, $on eq 'on' ? 'running' : 'off', "deliver = $on");
	return;
}

# For each endpoint so many jobs: those that have a queue by that, the others by name in one queue with
# the big one's.
sub push_small
{
	my ($each, $first) = @_;
	$first //= 1;
	return qq{
		SELECT jobq.push('q' || n) FROM generate_series($first, $queues) AS n, generate_series(1, $each);
		SELECT jobq.push('shared', options => jsonb_build_object('endpoint', 'e' || n))
		FROM generate_series(greatest($first, $queues + 1), $endpoints) AS n, generate_series(1, $each)};
}

sub until_arrived
{
	my ($number, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	until_ok(sub { $small->stats->{distinct} >= $number }, $name, 60);
	return;
}

# Jobs of the big one that wait.
sub backlog
{
	return sql(q{
		SELECT count(*) FROM jobq.job AS j JOIN jobq.queue AS q ON q.id = j.queue_id
		WHERE q.name = 'shared' AND j.endpoint_id IS NULL AND j.lease_until IS NULL});
}

# The dispatcher's processor time, in s.
sub cpu
{
	my @stat = split ' ', slurp_file('/proc/' . sql(q{SELECT pid FROM jobq.status() WHERE component = 'dispatcher'}) . '/stat') =~ s/.*\) //sr;
	return ($stat[11] + $stat[12]) / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}

timed("$endpoints endpoints are made", sprintf q{
	INSERT INTO jobq.endpoint (name, url, signed) SELECT 'e' || n, '%s' || n, false FROM generate_series(1, %d) AS n},
	$small->url('/'), $endpoints);
timed("$queues queues are made", qq{SELECT jobq.create_queue('q' || n, endpoint => 'e' || n) FROM generate_series(1, $queues) AS n});
hook($node, 'shared', $big->url('/ok'));

# Everyone is served while the big one's jobs wait, in turn

{
	deliver('off');
	timed("$many jobs are pushed for one endpoint", qq{
		SELECT count(*) FROM (SELECT jobq.push_many('shared', array_fill('{}'::jsonb, ARRAY[10000])) FROM generate_series(1, $many / 10000)) AS p});
	timed('and three for each of the others', push_small(3));
	my $before = cpu();
	my $start = time;
	deliver('on');
	until_arrived(3 * $endpoints, 'all jobs of all small endpoints are delivered');
	note(sprintf 'that took %.1f s, and %.1f s of the dispatcher\'s processor time', time - $start, cpu() - $before);
	my $served = q{
		SELECT e.name AS endpoint, f.finished_at AS at FROM jobq.finished AS f JOIN jobq.queue AS q ON q.id = f.queue_id
		JOIN jobq.endpoint AS e ON e.id = coalesce(f.endpoint_id, q.endpoint_id)};
	until_is($node, "SELECT count(*) FROM ($served) AS s WHERE endpoint <> 'shared'", 3 * $endpoints, 'and recorded');
	# The very last may have met with a pause of the machine, in which the big one's were served.
	my ($others, $of_big, $of_big_then) = split /\|/, sql(qq{
		WITH served AS ($served), of_others AS (
			SELECT max(at) AS last, percentile_disc(0.99) WITHIN GROUP (ORDER BY at) AS nearly, count(DISTINCT endpoint) AS number
			FROM served WHERE endpoint <> 'shared')
		SELECT number, count(*) FILTER (WHERE at <= last), count(*) FILTER (WHERE at <= nearly)
		FROM of_others, served WHERE endpoint = 'shared' GROUP BY 1});
	is($others, $endpoints, 'to each endpoint');
	note(sprintf 'the last of their %d jobs was delivery number %d: before it came %d of the big one, before nearly all %d', 3 * $endpoints,
		3 * $endpoints + $of_big, $of_big, $of_big_then);
	cmp_ok($of_big, '>', 0, 'the big one went on meanwhile');
	cmp_ok($of_big_then, '<', $endpoints / 2, 'and took no more than its turns');
	cmp_ok(backlog(), '>', 0, 'its jobs still wait');
}

# They are served in turn also by those who come later, each at once

{
	$small->reset;
	my $start = time;
	sql(push_small(1));
	until_arrived($endpoints, 'while it is busy with the big one, jobs for all others are delivered');
	note(sprintf 'within %.1f s', time - $start);
	$start = time;
	sql(q{SELECT jobq.push('q7')});
	until_arrived($endpoints + 1, 'and so is a single one');
	note(sprintf 'within %.0f ms', 1000 * (time - $start));
	cmp_ok(backlog(), '>', 0, 'the big one\'s jobs still wait');
	sql(q{SELECT jobq.clear('shared')});
	until_idle($node, 'until they are cleared');
}

# One that hangs takes its own places only

{
	$small->reset;
	$big->reset;
	$big->answer('/hang');
	sql(q{SELECT jobq.alter_endpoint('shared', options => '{"min_in_flight": 50, "breaker_failures": 0}')});
	sql(q{SELECT jobq.push_many('shared', array_fill('{}'::jsonb, ARRAY[1000]))});
	$big->wait_for(sub { $_[0]{in_flight} == 50 }, '50 requests that hang');
	sql(push_small(3));
	until_arrived(3 * $endpoints, 'beside a big endpoint that hangs, all others are served');
	my $stats = $big->stats;
	is("$stats->{in_flight} $stats->{aborted}", '50 0', 'before any of its requests has ended');
	is($stats->{peak_in_flight}, 50, 'which are no more than its max_in_flight');
	sql(q{SELECT jobq.clear('shared')});
	$big->restart;
	until_idle($node, 'until it ends them');
	sql(q{SELECT jobq.clear('shared')});
}

# Thousands of endpoints that take nothing cost nothing

{
	$small->reset;
	timed('all are disabled', q{UPDATE jobq.endpoint SET enabled = false WHERE name LIKE 'e%'});
	sql(push_small(3));
	my $other = push_job($node, q{'shared'});
	until_state($node, $other, 'completed', 'one that is enabled is served');
	until_idle($node, 'then nothing is to be done');
	my ($start, $before) = (time, cpu());
	usleep(2_000_000); # what is measured
	my ($took, $used) = (time - $start, cpu() - $before);
	note(sprintf 'processor time while %d jobs for %d endpoints wait: %.2f s in %.1f s', 3 * $endpoints, $endpoints, $used, $took);
	cmp_ok($used, '<', $took / 10, 'while all that waits is for endpoints that take nothing, the dispatcher sleeps');
	is($small->stats->{requests}, 0, 'and sends nothing');
}

# Settings

{
	my $start = time;
	sql(q{SELECT jobq.alter_endpoint('e1234', options => '{"enabled": true}')});
	until_arrived(3, 'one among thousands is enabled: its jobs are delivered');
	note(sprintf 'within %.0f ms', 1000 * (time - $start));
	until_idle($node, 'and no others');
	is($small->stats->{requests}, 3, 'by the endpoint\'s settings of now');
	timed('all are enabled', q{UPDATE jobq.endpoint SET enabled = true WHERE name LIKE 'e%'});
	until_arrived(3 * $endpoints, 'all are enabled: all is delivered');
	until_idle($node, 'and recorded');

	# Each is a reload of its own.
	my $before = cpu();
	timed('one after another 50 are altered', join '', map { "SELECT jobq.alter_endpoint('e$_', max_in_flight => 20);\n" } 1 .. 50);
	push_job($node, q{'q3'});
	until_arrived(3 * $endpoints + 1, 'and the dispatcher has followed');
	note(sprintf 'processor time: %.2f s', cpu() - $before);
}

# What is rolled back leaves nothing behind, and holds up nothing

{
	$small->reset;
	sql('BEGIN;' . push_small(3) . '; ROLLBACK');
	sql('BEGIN; SAVEPOINT a;' . push_small(1) . '; ROLLBACK TO a; ' . push_small(1, $endpoints - 9) . '; COMMIT');
	until_arrived(10, 'of what was pushed to thousands of endpoints, what is not rolled back is delivered');
	sql(push_small(1));
	until_arrived($endpoints + 10, 'then what is pushed to all');
	until_idle($node, 'and recorded');
	is($small->stats->{requests}, $endpoints + 10, 'and nothing else');
}

# Thousands are dropped

{
	my $first = $queues + 1;
	timed('those without a queue are dropped', qq{SELECT jobq.drop_endpoint('e' || n) FROM generate_series($first, $endpoints) AS n});
	is(sql(q{SELECT count(*) FROM jobq.endpoint}), $queues + 1, 'thousands are dropped at once');
	is(sql(q{SELECT count(*) FROM jobq.endpoint_stats}), $queues + 1, 'nothing is shown of them any more');
	$small->reset;
	sql("SELECT jobq.push('q' || n) FROM generate_series(1, $queues) AS n");
	until_arrived($queues, 'the others are served');
}

done_testing();
