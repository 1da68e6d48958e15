# Claims begin at a bound, and pass over what waits for its group (core/bound.hpp). What becomes claimable
# behind them must be found all the same, and at once: the scans that would find it are an hour apart.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('bounds', conf => [ 'jobq.scan_interval = 1h', 'max_prepared_transactions = 10' ]);

sub sql { return $node->safe_psql('postgres', $_[0]) }

my $queue;
my $queues = 0;
# A queue whose bound stands behind some jobs that are done.
sub bounded
{
	$queue = 'q' . ++$queues;
	sql(qq{SELECT jobq.create_queue('$queue', options => '{"retry_first": "1 ms", "retry_jitter": 0}')});
	for (1 .. 2)
	{
		sql(qq{SELECT jobq.push_many('$queue', array_fill('"before"'::jsonb, ARRAY[5]))});
		sql(qq{SELECT jobq.complete(id, attempt) FROM jobq.pull('$queue', 10)});
	}
	return;
}

# What a pull gets, by payload.
sub pulls { return join ' ', map { tr/"//dr } split /\n/, sql(qq{SELECT payload FROM jobq.pull('$queue', @{[ $_[0] // 10 ]})}) }
sub push_as { return sql(qq{SELECT jobq.push('$queue', '"$_[0]"'@{[ $_[1] // '' ]})}) }
# Calls a function with the id and the attempt of a running job.
sub on
{
	my ($function, $payload, $more) = @_;
	sql(sprintf q{SELECT jobq.%s(id, attempt%s) FROM jobq.jobs WHERE queue = '%s' AND payload = '"%s"' AND state = 'running'},
		$function, $more // '', $queue, $payload);
	return;
}

{
	bounded();
	my $late = session($node);
	$late->query_safe(qq{BEGIN; SELECT jobq.push('$queue', '"late"')});
	push_as('in time');
	is(pulls(), 'in time', 'a claim goes past a push that is not committed');
	push_as('next');
	is(pulls(), 'next', 'and so does another');
	$late->query_safe('COMMIT');
	is(pulls(), 'late', 'once it is committed it is found below the bound');

	$late->query_safe(qq{BEGIN; SELECT jobq.push('$queue', '"prepared"'); PREPARE TRANSACTION 'late'});
	push_as('in time');
	is(pulls(), 'in time', 'a claim goes past one that is prepared');
	sql(q{COMMIT PREPARED 'late'});
	is(pulls(), 'prepared', 'which is found too');
	close_session($late);
}
{
	bounded();
	push_as($_) for 1 .. 4;
	is(pulls(1), $_, 'one of four is pulled') for 1 .. 2;
	on('release', 1);
	is(pulls(1), '1', 'who wants one gets the one that is given back');
	is(pulls(), '3 4', 'and does not carry the bound past those that were not looked at');
}
{
	bounded();
	push_as($_) for 1 .. 4;
	is(pulls(), '1 2 3 4', 'four run');
	on('complete', $_) for 2 .. 4;
	push_as('5');
	is(pulls(), '5', 'the bound is past them');
	on('release', 1);
	is(pulls(), '1', 'one that is given back is found below the bound');
	on('fail', 1, q{, 'no', '0'});
	is(pulls(), '1', 'and one that failed');
	on('complete', 5);
	push_as('earlier', q{, run_at => now() - interval '1 h'});
	is(pulls(), 'earlier', 'and one that was due an hour ago when it was pushed');
	push_as('urgent', ', priority => -5');
	push_as('normal');
	is(pulls(), 'urgent normal', 'and one of a priority that there was none of');
	push_as('still urgent', ', priority => -5');
	is(pulls(), 'still urgent', 'and the next of that priority');
}
{
	bounded();
	push_as($_) for 1 .. 3;
	my $session = session($node);
	$session->query_safe(qq{BEGIN; SELECT jobq.pull('$queue')});
	is(pulls(1), '2', 'a claim goes past what another has claimed');
	is(pulls(1), '3', 'and past that');
	$session->query_safe('ROLLBACK');
	is(pulls(), '1', 'what is rolled back is found again');

	push_as($_) for 4 .. 6;
	$session->query_safe(qq{BEGIN; SAVEPOINT a; SELECT jobq.pull('$queue'); ROLLBACK TO a});
	is(pulls(), '4 5 6', 'also where only a part of the transaction was');
	$session->query_safe('COMMIT');

	push_as($_) for 7 .. 8;
	my ($cancelled) = sql(qq{SELECT id FROM jobq.jobs WHERE queue = '$queue' AND payload = '"7"'});
	$session->query_safe(qq{BEGIN; SELECT jobq.cancel('$cancelled')});
	is(pulls(), '8', 'a claim goes past a job that is being cancelled');
	$session->query_safe('ROLLBACK');
	is(pulls(), '7', 'which is found when that is undone');
	close_session($session);
}
{
	bounded();
	push_as('held');
	is(sql(qq{SELECT payload FROM jobq.pull('$queue', lease => '300 ms')}), '"held"', 'a job runs on a short lease');
	push_as($_) for 1 .. 2;
	is(pulls(), '1 2', 'the bound is past it');
	my $again = '';
	until_ok(sub { ($again = pulls()) ne '' }, 'it comes back when the lease is over, without a scan');
	is($again, 'held', 'and it alone');
}

# Groups: what waits for its turn is passed over.
for my $end ([ 'complete' ], [ 'bury', q{, 'no'} ], [ 'fail', q{, 'no'}, q{, options => '{"max_attempts": 1}'} ])
{
	my ($function, $more, $options) = @$end;
	bounded();
	push_as($_, q{, group_key => 'g'} . ($options // '')) for 1 .. 3;
	push_as('other');
	is(pulls(), '1 other', "$function: the first of a group and what is of none");
	push_as('another');
	is(pulls(), 'another', "$function: the bound is past those that wait");
	on($function, 1, $more);
	is(pulls(), '2', "$function: then it is the turn of the second");
	on($function, 2, $more);
	push_as('a third');
	is(pulls(), '3 a third', "$function: and of the third, before what was pushed later");
}
{
	bounded();
	push_as($_, q{, group_key => 'g'}) for 1 .. 2;
	push_as('other');
	is(pulls(), '1 other', 'the first of a group runs');
	sql(qq{SELECT jobq.cancel(id) FROM jobq.jobs WHERE queue = '$queue' AND payload = '"1"'});
	is(pulls(), '2', 'the second has its turn when the first is cancelled');

	push_as('dies', q{, group_key => 'h', options => jsonb_build_object('expires_at', clock_timestamp() + interval '300 ms')});
	my $session = session($node);
	$session->query_safe(qq{BEGIN; SELECT FROM jobq.job WHERE payload = '"dies"' FOR UPDATE});
	push_as('lives', q{, group_key => 'h'});
	is(pulls(), '', 'or cannot have it yet');
	until_ok(sub { sql(q{SELECT expires_at < clock_timestamp() FROM jobq.job WHERE payload = '"dies"'}) eq 't' }, 'until the first has expired');
	$session->query_safe('ROLLBACK');
	sql(qq{SELECT jobq.resume('$queue')}); # nobody tells of a lock taken by hand
	is(pulls(), 'lives', 'when it has expired');
	close_session($session);
}
{
	bounded();
	my $early = session($node);
	$early->query_safe(qq{BEGIN; SELECT jobq.push('$queue', '"early"', group_key => 'g')});
	push_as($_, q{, group_key => 'g'}) for 'later', 'last';
	is(pulls(), 'later', 'a push of a group that is not committed is passed over');
	$early->query_safe('COMMIT');
	push_as('other');
	is(pulls(), 'other', 'when it is, it waits for the one that runs');
	push_as('another');
	is(pulls(), 'another', 'and the bound goes past it');
	on('complete', 'later');
	is(pulls(), 'early', 'then it is its turn');
	on('complete', 'early');
	is(pulls(), 'last', 'and then that of the last');
	close_session($early);
}
{
	bounded();
	push_as($_, q{, group_key => 'g'}) for 1 .. 2;
	my $other = session($node);
	$other->query_safe(qq{BEGIN; SELECT jobq.pull('$queue')});
	push_as('other');
	is(pulls(), 'other', 'a group from which somebody is claiming is passed over');
	push_as('another');
	is(pulls(), 'another', 'again');
	$other->query_safe('ROLLBACK');
	is(pulls(), '1', 'and found when that is rolled back');
	close_session($other);
}
{
	# More turns at once than there are spots.
	bounded();
	sql(qq{SELECT count(*) FROM jobq.push_many('$queue', array_fill('1'::jsonb, ARRAY[1500]),
		group_keys => ARRAY(SELECT 'g' || i % 500 FROM generate_series(1, 1500) AS i))});
	my $done = 0;
	until_ok(sub {
			my $n = sql(qq{WITH pulled AS MATERIALIZED (SELECT * FROM jobq.pull('$queue', 1000))
				SELECT count(*) FROM jobq.complete_many(ARRAY(SELECT id FROM pulled), ARRAY(SELECT attempt FROM pulled))});
			$done += $n;
			return $n == 0;
		}, '500 groups are worked off');
	is($done, 1500, 'all of them');
}
{
	# More priorities than there are levels.
	bounded();
	push_as("p$_", ", priority => $_") for reverse 1 .. 12;
	is(pulls(5), 'p1 p2 p3 p4 p5', 'twelve priorities are worked off in their order');
	push_as('p0', ', priority => 0');
	is(pulls(3), 'p0 p6 p7', 'with one that comes in between');
	is(pulls(), 'p8 p9 p10 p11 p12', 'to the end');
}

done_testing();
