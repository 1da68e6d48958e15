# Whatever is killed, every committed job comes to its end, and is counted: by the clients that
# pushed, by the receiver, and in jobq.jobs.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();
use Receiver;
use Test::More;
use Time::HiRes qw(usleep);

# With an hour between scans, nothing is found by chance.
my $node = jobq_node('crash', conf => [ 'restart_after_crash = on', 'jobq.scan_interval = 1h' ]);
my $receiver = Receiver->start;
my $dir = PostgreSQL::Test::Utils::tempdir();

sub sql { return $node->safe_psql('postgres', $_[0]) }

# Clients that push, each job in a transaction of its own, and write down what the server said was
# committed. They connect again when they are thrown out. One more pushes without waiting for its WAL:
# what it was told may be undone by a crash. Some jobs are refused each time, but for refused => 0.
sub start_pushers
{
	my ($queue, $number, %options) = @_;
	my $script = "$dir/$queue.sql";
	my $refused = $options{refused} // 1;
	append_to_file($script, join '', map {
		my $more = !$refused || $_ % 25 ? '' : q{, type => 'refused', options => '{"max_attempts": 2, "headers": {"receiver": "fail"}}'};
		"SELECT jobq.push('$queue', '{\"n\": $_}'$more);\n";
	} 1 .. 200);
	my %run = (queue => $queue, stop => "$dir/$queue.stop", files => []);
	my $parent = $$;
	for my $n (0 .. $number)
	{
		my $file = "$dir/$queue.$n";
		my $commit = $n ? 'on' : 'off';
		push @{ $run{files} }, $file if $n;
		my $pid = fork // die "fork: $!";
		if (!$pid)
		{
			open STDOUT, '>>', $file or POSIX::_exit(1);
			open STDERR, '>', '/dev/null';
			until (-e $run{stop} || getppid != $parent)
			{
				usleep(20_000)
				  if system 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-c', "SET synchronous_commit = $commit",
				  '-f', $script, '-d', $node->connstr('postgres');
			}
			POSIX::_exit(0);
		}
		push @{ $run{pids} }, $pid;
	}
	return \%run;
}

# The ids that the clients wrote down.
sub stop_pushers
{
	my ($run) = @_;
	append_to_file($run->{stop}, '');
	waitpid $_, 0 for @{ $run->{pids} };
	return map { split /\n/, slurp_file($_) } @{ $run->{files} };
}

# More requests than before, so that what comes next comes in the middle of deliveries.
sub until_more
{
	my ($number) = @_;
	my $before = $receiver->stats->{requests};
	$receiver->wait_for(sub { $_[0]{requests} >= $before + $number }, "$number more requests");
	return;
}

sub until_over
{
	my ($queue, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	until_is($node, qq{SELECT count(*) FROM jobq.jobs WHERE queue = '$queue' AND state NOT IN ('completed', 'dead')}, 0, $name);
	return;
}

# requests: what the receivers saw.
sub account
{
	my ($run, $committed, $requests, $what) = @_;
	my $queue = $run->{queue};
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %job = map { my ($id, @rest) = split /\|/; $id => \@rest } split /\n/, sql(qq{
		SELECT j.id, state, type IS NOT NULL, count(*) FILTER (WHERE outcome = 'http_500')
		FROM jobq.jobs AS j LEFT JOIN jobq.attempts AS a USING (id) WHERE queue = '$queue' GROUP BY 1, 2, 3});
	my %seen;
	$seen{ $_->{id} }++ for grep { $_->{queue} eq $queue } @$requests;
	note(sprintf '%s: %d pushes acknowledged, %d jobs, %d requests for %d of them', $what,
		scalar @$committed, scalar keys %job, scalar @$requests, scalar keys %seen);
	note(sprintf '%s: of the pushes that did not wait for their WAL %d were undone', $what,
		scalar grep { !exists $job{$_} } split /\n/, slurp_file("$dir/$queue.0"));

	cmp_ok(scalar @$committed, '>', 1000, "$what: there were pushes to lose");
	is(scalar(grep { !exists $job{$_} } @$committed), 0, "$what: no committed push is lost");
	is(scalar(grep { !$seen{$_} } keys %job), 0, "$what: every job was delivered");
	is(scalar(grep { !exists $job{$_} } keys %seen), 0, "$what: nothing was delivered that a crash undid");
	is(scalar(grep { $_->[0] eq 'completed' && $_->[1] eq 't' || $_->[0] eq 'dead' && $_->[1] eq 'f' } values %job), 0,
		"$what: jobs that are refused are dead, the others completed");
	is(scalar(grep { $_->[0] eq 'dead' && $_->[2] != 2 } values %job), 0,
		"$what: interrupted attempts are not charged");
	is(sql(q{SELECT count(lease_until) FROM jobq.job}), 0, "$what: no job is left running");
	return;
}

# Whether a process is there; where nobody reaps them, those that have ended still have a number.
sub lives
{
	my ($pid) = @_;
	my $stat = eval { slurp_file("/proc/$pid/stat") } // '';
	return kill(0, $pid) && $stat !~ /^\d+ \(.*\) Z/s;
}

my %soon = (retry_first => '100 ms', retry_longest => '500 ms');

# The dispatcher is killed: all of PostgreSQL's processes start again.
{
	hook($node, 'killed', $receiver->url('/slow?ms=5'), queue => {%soon});
	my $run = start_pushers('killed', 2);
	my $pid = dispatcher($node);
	for (1 .. 3)
	{
		until_more(500);
		kill 'KILL', $pid;
		$pid = dispatcher($node, not => $pid);
	}
	until_more(500);
	my @committed = stop_pushers($run);
	until_over('killed', 'kill -9 of the dispatcher, three times: all jobs come to their end');
	account($run, \@committed, [ $receiver->requests ], 'kill -9');
	cmp_ok(sql(q{SELECT count(*) FROM jobq.attempts WHERE outcome = 'interrupted'}), '>', 0,
		'kill -9: what was in flight was taken up by the next dispatcher');
}

# The server is stopped without a word, and its postmaster killed: then the other processes are to end
# by themselves.
{
	$receiver->reset;
	hook($node, 'stopped', $receiver->url('/slow?ms=5'), queue => {%soon});
	sql('ALTER DATABASE postgres SET synchronous_commit = off');
	my $run = start_pushers('stopped', 2);
	for (1 .. 3)
	{
		until_more(500);
		$node->stop('immediate');
		$node->start;
	}
	until_more(500);
	my @pids = split /\n/, sql('SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()');
	my $lock_file = $node->data_dir . '/postmaster.pid';
	push @pids, slurp_file($lock_file) =~ /^(\d+)/;
	$node->kill9;
	until_ok(sub { !grep { lives($_) } @pids }, 'no process outlives a postmaster that is killed');
	# Its number may be in use for as long as nobody reaps it.
	unlink $lock_file, $node->host . '/.s.PGSQL.' . $node->port . '.lock';
	# Clients that connected after the look may still be on their way out.
	until_ok(sub { $node->start(fail_ok => 1) }, 'after which the server starts');
	until_more(500);
	my @committed = stop_pushers($run);
	until_over('stopped', 'an immediate stop of the server, three times, and a kill of its postmaster: all jobs come to their end');
	account($run, \@committed, [ $receiver->requests ], 'immediate stop');
	sql('ALTER DATABASE postgres RESET synchronous_commit');
}

# The receiver is gone for a while
{
	$receiver->reset;
	# Breakers that wait for longer would only make the test longer.
	hook($node, 'deaf', $receiver->url('/ok'), endpoint => { breaker_first => '1 s', breaker_longest => '1 s' }, queue => {%soon});
	my $run = start_pushers('deaf', 2, refused => 0);
	until_more(1000);
	# What it has seen goes with it: let it have seen all that was sent.
	sql(q{SELECT jobq.pause('deaf')});
	until_is($node, q{SELECT count(lease_until) FROM jobq.job}, 0, 'nothing is in flight');
	my @requests = $receiver->requests;
	$receiver->stop;
	sql(q{SELECT jobq.resume('deaf')});
	until_is($node, q{SELECT breaker FROM jobq.endpoint_stats WHERE endpoint = 'deaf'}, 'open', 'deliveries fail while the receiver is down');
	my $failed = sql(q{SELECT failed FROM jobq.endpoint_stats WHERE endpoint = 'deaf'});
	until_is($node, qq{SELECT failed > $failed FROM jobq.endpoint_stats WHERE endpoint = 'deaf'}, 't', 'and so does a probe');
	my @committed = stop_pushers($run);
	is(sql(q{SELECT sum(dead) FROM jobq.stats WHERE queue = 'deaf'}), 0,
		'no job is dead for it: the default attempts last longer');
	$receiver->restart;
	until_over('deaf', 'a receiver that is down for a while: all jobs come to their end');
	account($run, \@committed, [ @requests, $receiver->requests ], 'receiver down');
}

# The dispatcher is asked to end, and drains
{
	hook($node, 'drained', $receiver->url('/slow?ms=1500'));
	my $pid = dispatcher($node);
	$receiver->reset;
	sql(q{SELECT jobq.push('drained') FROM generate_series(1, 20)});
	$receiver->wait_for(sub { $_[0]{in_flight} == 20 }, '20 requests in flight');
	sql(qq{SELECT pg_terminate_backend($pid)});
	until_is($node, q{SELECT pid, state, in_flight FROM jobq.status() WHERE component = 'dispatcher'}, "$pid|draining|20",
		'a dispatcher that is asked to end drains');
	my $late = push_job($node, q{'drained', type => 'late'});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'drained' AND state = 'completed' AND type IS NULL}, 20,
		'what is in flight is waited for');
	is(sql(q{SELECT max(attempt) FROM jobq.jobs WHERE queue = 'drained' AND type IS NULL}), 1, 'and not delivered a second time');
	isnt(dispatcher($node, not => $pid), $pid, 'another dispatcher is started');
	until_state($node, $late, 'completed', 'which delivers what was pushed meanwhile');
	is($receiver->stats->{duplicates}, 0, 'nothing arrives twice');
}
{
	$node->append_conf('postgresql.conf', 'jobq.drain_timeout = 100ms');
	$node->reload;
	my $pid = dispatcher($node);
	$receiver->reset;
	sql(q{SELECT jobq.push('drained', type => 'given back',
		options => '{"max_attempts": 1, "headers": {"receiver": "slow?ms=2500"}}') FROM generate_series(1, 20)});
	$receiver->wait_for(sub { $_[0]{in_flight} == 20 }, '20 requests in flight');
	sql(qq{SELECT pg_terminate_backend($pid)});
	isnt(dispatcher($node, not => $pid), $pid, 'a dispatcher does not drain for longer than jobq.drain_timeout');
	$receiver->wait_for(sub { $_[0]{aborted} == 20 }, 'the requests to be broken off');
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE type = 'given back' AND state = 'completed'}, 20,
		'what is in flight then is delivered again');
	is(sql(q{SELECT DISTINCT attempt, failures FROM jobq.jobs WHERE type = 'given back'}), '2|0', 'uncharged');
	is(sql(q{
			SELECT DISTINCT story FROM (
				SELECT string_agg(outcome, ', ' ORDER BY a.attempt) AS story
				FROM jobq.attempts AS a JOIN jobq.jobs USING (id) WHERE type = 'given back' GROUP BY id) AS s}),
		'interrupted, completed',
		'and says so in its story');
}
{
	# Somebody else has the job locked when it should be given back, and when it should be taken up.
	my $pid = dispatcher($node);
	$receiver->reset;
	my $id = push_job($node, q{'drained', type => 'locked', options => '{"headers": {"receiver": "slow?ms=2500"}}'});
	$receiver->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request in flight');
	my $session = session($node);
	$session->query_safe(qq{BEGIN; SELECT jobq.cancel('$id')});
	sql(qq{SELECT pg_terminate_backend($pid)});
	isnt(dispatcher($node, not => $pid), $pid, 'a lock on a job in flight does not hold the dispatcher');
	# Some of them between a try and the next.
	push_job($node, q{'drained', type => 'beside', options => '{"headers": {"receiver": "ok"}}'}) for 1 .. 15;
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE type = 'beside' AND state = 'completed'}, 15, 'other jobs are delivered');
	$session->query_safe('ROLLBACK');
	close_session($session);
	until_state($node, $id, 'completed', 'the job that was locked is taken up when it is not locked any more', seconds => 45);
}

# The server is restarted
{
	my $pid = dispatcher($node);
	$receiver->reset;
	sql(q{SELECT jobq.push('drained', type => 'restarted', options => '{"headers": {"receiver": "slow?ms=2500"}}') FROM generate_series(1, 20)});
	$receiver->wait_for(sub { $_[0]{in_flight} == 20 }, '20 requests in flight');
	$node->restart;
	isnt(dispatcher($node, not => $pid), $pid, 'a dispatcher runs after a restart');
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE type = 'restarted' AND state = 'completed'}, 20,
		'jobs that ran when the server was restarted are delivered again', seconds => 45);
	is(sql(q{SELECT DISTINCT attempt, failures FROM jobq.jobs WHERE type = 'restarted'}), '2|0', 'uncharged');

	$receiver->reset;
	sql(q{SELECT jobq.push('drained', type => 'crashed', options => '{"headers": {"receiver": "slow?ms=2500"}}') FROM generate_series(1, 20)});
	$receiver->wait_for(sub { $_[0]{in_flight} == 20 }, '20 requests in flight');
	$node->stop('immediate');
	$node->start;
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE type = 'crashed' AND state = 'completed'}, 20,
		'so are those that ran when it was stopped without a word', seconds => 45);
	is(sql(q{SELECT DISTINCT attempt, failures FROM jobq.jobs WHERE type = 'crashed'}), '2|0', 'uncharged');
}

done_testing();
