# What answers mean: to the job, and to the endpoint that gave them. The periodic scan is as good as off:
# whatever goes on by itself was timed.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX 'strftime';
use Receiver;
use Test::More;

my $node = jobq_node('answers', conf => [ 'restart_after_crash = on', 'jobq.scan_interval = 1h' ]);
my $receiver = Receiver->start;

sub sql { return $node->safe_psql('postgres', $_[0]) }

# An endpoint and a queue whose settings are not in the way of what a test is about.
sub hook_to
{
	my ($name, %options) = @_;
	my $to = delete $options{to} // $receiver;
	return hook($node, $name, $to->url("/$name"),
		endpoint => { breaker_failures => 0, %{ $options{endpoint} || {} } },
		queue => { retry_first => '20 ms', retry_jitter => 0, %{ $options{queue} || {} } });
}

# Pushes a job that is answered like that ("status/404"). Options are those of the push, type besides.
sub answered
{
	my ($queue, $how, %options) = @_;
	my $type = delete $options{type};
	return push_job($node, sprintf q{'%s', type => %s, group_key => %s, options => '%s'}, $queue,
		(map { defined $_ ? "'$_'" : 'NULL' } $type, delete $options{group_key}),
		encode_json({ %options, headers => { receiver => $how } }));
}

# The same for several answers at once, by them.
sub answered_all
{
	my ($queue, $hows, %options) = @_;
	my @ids = split /\n/, sql(join ' UNION ALL ', map {
		sprintf q{SELECT jobq.push('%s', options => '%s')}, $queue, encode_json({ %options, headers => { receiver => $_ } })
	} @$hows);
	return map { $hows->[$_] => $ids[$_] } 0 .. $#ids;
}

# An assertion: jobs come to a state. Returns their stories and errors by their ids.
sub until_ended
{
	my ($ids, $state, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $in = join ', ', map { "'$_'" } @$ids;
	until_is($node, "SELECT count(*) FROM jobq.jobs WHERE id IN ($in) AND state = '$state'", scalar(@$ids), $name);
	return map { my ($id, @more) = split /\|/; $id => \@more } split /\n/, sql(qq{
		SELECT j.id, (SELECT string_agg(a.attempt || ' ' || coalesce(a.outcome, 'running'), ', ' ORDER BY a.attempt)
			FROM jobq.attempts AS a WHERE a.id = j.id), j.error
		FROM jobq.jobs AS j WHERE j.id IN ($in)});
}

sub setting { my ($what, $query) = @_; return sql("SELECT $what FROM jobq.endpoint_stats WHERE endpoint = '$query'") }

sub until_setting
{
	my ($what, $endpoint, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_is($node, "SELECT $what FROM jobq.endpoint_stats WHERE endpoint = '$endpoint'", $expected, $name);
}

# How long the job waits after its last failure, in seconds.
sub waits
{
	my ($id) = @_;
	return sql(qq{
		SELECT extract(epoch FROM j.run_at - a.finished_at) FROM jobq.jobs AS j JOIN jobq.attempts AS a USING (id)
		WHERE id = '$id' AND j.state = 'queued' ORDER BY a.attempt DESC LIMIT 1});
}

sub until_story
{
	my ($id, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_is($node, qq{
		SELECT string_agg(attempt || ' ' || coalesce(outcome, 'running'), ', ' ORDER BY attempt)
		FROM jobq.attempts WHERE id = '$id'}, $expected, $name);
}

sub within
{
	my ($value, $low, $high, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($value ne '' && $value >= $low && $value <= $high, $name) || diag("$value is not within $low and $high");
}

# The answer 202

sub until_accepted
{
	my ($id, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# A running job that is not being delivered.
	return until_is($node, "SELECT state, j.delivery IS NULL FROM jobq.jobs JOIN jobq.job AS j USING (id) WHERE id = '$id'",
		'running|t', $name);
}

# What was sent with the last request of a job.
sub token { my ($id) = @_; return ($receiver->requests(id => $id))[-1]{headers}{'jobq-attempt'} }

hook_to('later', endpoint => { accept_later => JSON::PP::true, max_in_flight => 2 }, queue => { lease => '2 h' });
hook_to('not_later');
{
	my $id = answered('not_later', 'status/202');
	until_state($node, $id, 'completed', '202 completes a job where the endpoint does not say otherwise');
	is(sql(qq{SELECT outcome, status_code FROM jobq.attempts WHERE id = '$id'}), 'completed|202', 'as any 2xx does');
}
{
	my $id = answered('later', 'status/202');
	until_accepted($id, 'where it says so, 202 leaves the job running');
	is(sql(qq{SELECT attempt, outcome IS NULL, finished_at IS NULL FROM jobq.attempts WHERE id = '$id'}), '1|t|t',
		'its attempt has no outcome yet');
	within(sql(qq{SELECT extract(epoch FROM lease_until - clock_timestamp()) FROM jobq.jobs WHERE id = '$id'}),
		7100, 7200, "it has the queue's lease");
	until_idle($node, 'it is not in flight');
	my ($status, $out, $error) = $node->psql('postgres', "SELECT jobq.complete('$id', 2)");
	isnt($status, 0, 'an attempt that was not sent does not complete it');
	is(state_of($node, $id), 'running', 'it is still running then');
	sql(sprintf q{SELECT jobq.complete('%s', %s, '{"made": 1}')}, $id, token($id));
	is(sql(qq{SELECT state, result FROM jobq.jobs WHERE id = '$id'}), 'completed|{"made": 1}',
		'the attempt that was sent does, with a result');
	is(story($node, $id), '1 completed', 'it was one attempt');
	is(scalar($receiver->requests(id => $id)), 1, 'and one request');
}
{
	my $id = answered('later', 'status/202');
	until_accepted($id, 'a job is accepted');
	sql(sprintf q{SELECT jobq.fail('%s', %s, 'the disk is full', retry_in => '0')}, $id, token($id));
	until_story($id, '1 failed, 2 running', 'jobq.fail has it delivered again');
	until_accepted($id, 'and accepted again');
	is(token($id), 2, 'with another token');
	my ($status, $out, $error) = $node->psql('postgres', "SELECT jobq.complete('$id', 1)");
	isnt($status, 0, 'the old one is good for nothing any more');
	sql("SELECT jobq.extend('$id', 2, '9 h', progress => 50, note => 'half')");
	is(sql(qq{SELECT lease_until > clock_timestamp() + interval '8 h', progress, note FROM jobq.jobs WHERE id = '$id'}),
		't|50|half', 'jobq.extend makes the lease longer');
	sql("SELECT jobq.complete('$id', 2)");
	is(state_of($node, $id), 'completed', 'the new one completes it');
}
{
	my $id = answered('later', 'status/200');
	until_state($node, $id, 'completed', '200 completes a job there as anywhere');
	$id = answered('later', 'flaky?fails=1&status=500');
	until_state($node, $id, 'completed', 'and 500 fails an attempt');
	is(story($node, $id), '1 http_500, 2 completed', 'which is retried');
}
{
	# More of them than the endpoint may have in flight.
	my @ids = map { answered('later', 'status/202') } 1 .. 5;
	until_accepted($_, 'jobs that were accepted leave room for others') for @ids;
	sql("SELECT jobq.cancel('$ids[0]')");
	is(state_of($node, $ids[0]), 'cancelled', 'they may be cancelled');
	is(sql(sprintf q{SELECT count(*) FROM jobq.complete_many('{%s}', '{1, 1, 1, 1}')}, join ',', @ids[ 1 .. 4 ]), 4,
		'or completed together');
}
{
	# Who answers late may be done before.
	my $id = answered('later', 'slow?ms=1500&status=202');
	until_ok(sub { $receiver->requests(id => $id) }, 'a request is under way');
	sql("SELECT jobq.complete('$id', 1)");
	until_idle($node, 'it is answered 202 when the job is completed');
	is((($receiver->requests(id => $id))[0] // {})->{status}, 202, 'indeed');
	is(sql(qq{SELECT state, attempt FROM jobq.jobs WHERE id = '$id'}), 'completed|1', 'it stays completed');
}
{
	my $first = answered('later', 'status/202', group_key => 'one');
	my $second = answered('later', 'status/200', group_key => 'one');
	until_accepted($first, 'a job of a group is accepted');
	my $other = answered('later', 'status/200');
	until_state($node, $other, 'completed', 'others are delivered meanwhile');
	is(state_of($node, $second), 'queued', 'the next one of its group waits');
	sql("SELECT jobq.complete('$first', 1)");
	until_state($node, $second, 'completed', 'until it is completed');
}

hook_to('short', endpoint => { accept_later => JSON::PP::true }, queue => { lease => '3 s' });
{
	my $long = answered('short', 'status/202');
	until_accepted($long, 'a job is accepted for a short lease');
	sql("SELECT jobq.extend('$long', 1, '1 h')");
	my $id = answered('short', 'flaky?fails=1&status=202');
	my $last = answered('short', 'status/202', max_attempts => 1);
	until_state($node, $id, 'completed', 'a job is delivered again when its lease is over');
	is(story($node, $id), '1 lease_expired, 2 completed', 'its story says why');
	my @requests = $receiver->requests(id => $id);
	within($requests[1]{arrived} - $requests[0]{ended}, 2900, 30_000, 'not before');
	is(sql(qq{SELECT failures FROM jobq.jobs WHERE id = '$id'}), 1, 'it is charged');
	until_state($node, $last, 'dead', 'one that has no attempt left is dead');
	is(story($node, $last), '1 lease_expired', 'for that reason');
	is(story($node, $long), '1 running', 'one whose lease was made longer is still running');
	sql("SELECT jobq.complete('$long', 1)");
}

# The dispatcher ends meanwhile: it is told to, or it crashes, and all of the server with it.
hook_to('restart', endpoint => { accept_later => JSON::PP::true }, queue => { lease => '1 h' });
hook_to('restart_short', endpoint => { accept_later => JSON::PP::true }, queue => { lease => '3 s' });
for my $how ('SIGTERM', 'SIGKILL')
{
	my $pid = dispatcher($node);
	my $id = answered('restart', 'status/202');
	my $ends = answered('restart_short', 'flaky?fails=1&status=202');
	until_accepted($_, "a job is accepted before $how") for $ends, $id;
	sql('CREATE TABLE flushed (); DROP TABLE flushed');    # and what was recorded before, with its commit
	if ($how eq 'SIGTERM') { sql("SELECT pg_terminate_backend($pid)") }
	else { kill 'KILL', $pid }
	isnt(dispatcher($node, not => $pid), $pid, 'another dispatcher runs');
	my $next = answered('restart', 'status/200');
	until_state($node, $next, 'completed', 'it delivers');
	is(story($node, $id), '1 running', 'the accepted job is still running');
	until_state($node, $ends, 'completed', 'one whose lease ends is delivered again');
	is(story($node, $ends), '1 lease_expired, 2 completed', 'because of that');
	my @requests = $receiver->requests(id => $ends);
	within($requests[1]{arrived} - $requests[0]{ended}, 2900, 30_000, 'and not before');
	is(scalar($receiver->requests(id => $id)), 1, 'the other was not');
	sql("SELECT jobq.complete('$id', 1)");
	is(state_of($node, $id), 'completed', 'and is completed with its token');
}

# Redirects

{
	hook_to('redirect', queue => { max_attempts => 1 });
	my @statuses = (301, 302, 303, 307, 308);
	my %ids = answered_all('redirect', [ map { "status/$_?location=" . $receiver->url('/followed') } @statuses ]);
	my %seen = until_ended([ values %ids ], 'dead', 'redirects fail the attempt');
	for my $how (sort keys %ids)
	{
		my ($status) = $how =~ /(\d+)/;
		my ($story, $error) = @{ $seen{ $ids{$how} } };
		is($story, "1 http_$status", "$status is its outcome");
		like($error, qr/redirects are not followed/, 'the error says why');
	}
	is(scalar($receiver->requests(path => '/followed')), 0, 'it is not followed');
}

# Other tries

hook_to('plain');
hook_to('final', endpoint => { final_statuses => [ '4xx', '5xx' ] });
hook_to('named', endpoint => { final_statuses => [ '429', '503' ] });
{
	my %ids = answered_all('plain', [ map { "flaky?fails=1&status=$_" } 400, 404, 408, 425, 429, 500, 502, 503, 504 ]);
	my %seen = until_ended([ values %ids ], 'completed', 'every status that is no success is retried');
	is($seen{ $ids{$_} }[0], '1 http_' . s/.*=//r . ', 2 completed', "$_ is, once") for sort keys %ids;
	%ids = answered_all('final', [ map { "flaky?fails=1&status=$_" } 408, 425, 429 ]);
	%seen = until_ended([ values %ids ], 'completed', 'those that ask for it even where 4xx is final');
	is($seen{ $ids{$_} }[0], '1 http_' . s/.*=//r . ', 2 completed', "$_ is, once") for sort keys %ids;
	%ids = answered_all('final', [ map { "status/$_" } 400, 404, 422, 500, 503 ]);
	%seen = until_ended([ values %ids ], 'dead', 'the others end a job where their class is final');
	for my $how (sort keys %ids)
	{
		my ($story, $error) = @{ $seen{ $ids{$how} } };
		is($story, '1 http_' . $how =~ s/.*\///r, "$how ends it at its first attempt");
		like($error, qr/final/, 'the error says why');
	}
}
{
	my $id = answered('final', 'status/200');
	until_state($node, $id, 'completed', 'final statuses do not concern 200');
	$id = answered('final', 'reset', max_attempts => 2);
	until_story($id, '1 connection_reset, 2 connection_reset', 'nor no answer at all');
	for my $status (429, 503)
	{
		$id = answered('named', "status/$status");
		until_state($node, $id, 'dead', "$status ends a job where it is named");
		is(story($node, $id), "1 http_$status", 'at its first attempt');
	}
	$id = answered('named', 'flaky?fails=1&status=500');
	until_state($node, $id, 'completed', 'one that is not named is retried there');
}
{
	my $id = answered('plain', 'status/500?header=jobq-no-retry:true');
	until_state($node, $id, 'dead', 'the header jobq-no-retry ends a job');
	is(story($node, $id), '1 http_500', 'at its first attempt');
	like(sql("SELECT error FROM jobq.jobs WHERE id = '$id'"), qr/asked for no other try/, 'the error says why');
	$id = answered('plain', 'status/429?header=jobq-no-retry:true&retry_after=0');
	until_state($node, $id, 'dead', 'also with a status that asks for one');
	$id = answered('plain', 'flaky?fails=1&header=jobq-no-retry:false');
	until_state($node, $id, 'completed', 'but not if it says false');
	is(story($node, $id), '1 http_500, 2 completed', 'so that it is retried');
	$id = answered('plain', 'status/200?header=jobq-no-retry:true');
	until_state($node, $id, 'completed', 'and it does nothing to a success');
}

# Waits

hook_to('waits', queue => { retry_first => '10 s', retry_longest => '10 min', retry_factor => 2 });
{
	my $date = sub {
		my ($from_now) = @_;
		my @days = qw(Sun Mon Tue Wed Thu Fri Sat);
		my @months = qw(Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec);
		my @t = gmtime(time + $from_now);
		return strftime("$days[$t[6]], %d $months[$t[4]] %Y %H:%M:%S GMT", @t) =~ s/ /%20/gr;
	};
	my @cases = (
		[ '30', 29, 30.5, 'seconds' ],
		[ $date->(120), 100, 120.5, 'a date' ],
		[ '100000', 599, 600.5, 'more than the longest wait is the longest' ],
		[ $date->(86400 * 400), 599, 600.5, 'so is a date far off' ],
		[ '99999999999999999999', 599, 600.5, 'so is a number that nobody can count' ],
		[ '1', 9.5, 10.5, 'less than the first wait is the first' ],
		[ $date->(-3600), 9.5, 10.5, 'so is a date that is over' ],
		[ 'soon', 9.5, 10.5, 'what cannot be read is passed over' ],
		[ '-5', 9.5, 10.5, 'and so is a negative number' ]);
	my %ids = answered_all('waits', [ map { "status/500?retry_after=$_->[0]" } @cases ]);
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'waits' AND failures = 1}, scalar(@cases),
		'answers with Retry-After');
	for my $case (@cases)
	{
		my ($after, $low, $high, $name) = @$case;
		within(waits($ids{"status/500?retry_after=$after"}), $low, $high, "$name ($after)");
	}
	my $id = answered('waits', 'status/404?retry_after=30');
	until_story($id, '1 http_404', 'Retry-After with 404');
	within(waits($id), 29, 30.5, 'counts with any status that is retried');
}

my %patient = (retry_first => '1 h', retry_jitter => 0, retry_longest => '5 h');
{
	hook_to('list', endpoint => { retry_waits => [ '200 ms', '500 ms' ] }, queue => \%patient);
	my $id = answered('list', 'status/500');
	until_state($node, $id, 'dead', "an endpoint's list of waits goes before the queue's settings");
	is(story($node, $id), '1 http_500, 2 http_500, 3 http_500', 'one attempt more than there are waits');
	my @requests = $receiver->requests(id => $id);
	within($requests[1]{arrived} - $requests[0]{ended}, 195, 20_000, 'the first wait is the first of the list');
	within($requests[2]{arrived} - $requests[1]{ended}, 495, 20_000, 'the second is the second');

	hook_to('list_more', endpoint => { retry_waits => [ '10 ms', '100 s', '300 s' ], max_attempts => 7 }, queue => \%patient);
	$id = answered('list_more', 'status/500');
	is(sql("SELECT max_attempts FROM jobq.jobs WHERE id = '$id'"), 7, 'max_attempts of the endpoint goes before that');
	until_story($id, '1 http_500, 2 http_500', 'a job is in the list');
	within(waits($id), 99, 100.5, 'and waits as it says');
	for my $case ([ 3, 299 ], [ 4, 299 ])
	{
		my ($attempt, $low) = @$case;
		sql("UPDATE jobq.job SET run_at = clock_timestamp() WHERE id = '$id'; SELECT jobq.push('list_more')");
		until_is($node, "SELECT count(*) FROM jobq.attempts WHERE id = '$id' AND outcome = 'http_500'", $attempt,
			"attempt $attempt fails");
		within(waits($id), $low, 300.5, $attempt == 3 ? 'the last wait follows' : 'and stays');
	}
	$id = answered('list_more', 'status/500?retry_after=4000');
	until_story($id, '1 http_500', 'Retry-After beside a list');
	within(waits($id), 299, 300.5, "counts up to the list's longest");
}
{
	hook_to('own', endpoint => { retry_first => '100 s', max_attempts => 3 },
		queue => { %patient, max_attempts => 9,
			types => { slow => { retry_first => '2 h', max_attempts => 8 }, once => { max_attempts => 1 } } });
	my $id = answered('own', 'status/500');
	until_story($id, '1 http_500', 'a delivery fails');
	within(waits($id), 99, 100.5, "the endpoint's first wait goes before the queue's");
	is(sql("SELECT max_attempts FROM jobq.jobs WHERE id = '$id'"), 3, 'and so do its attempts');
	$id = answered('own', 'status/500', type => 'slow');
	until_story($id, '1 http_500', 'one of a type with settings of its own fails');
	within(waits($id), 7199, 7200.5, "the type's first wait goes before the endpoint's");
	is(sql("SELECT max_attempts FROM jobq.jobs WHERE id = '$id'"), 8, 'and so do its attempts');
	$id = answered('own', 'status/500', type => 'once');
	until_state($node, $id, 'dead', 'a type that has but one attempt has it there too');
	hook_to('list_typed', endpoint => { retry_waits => ['100 s'] },
		queue => { %patient, types => { slow => { retry_first => '2 h' } } });
	$id = answered('list_typed', 'status/500', type => 'slow', max_attempts => 5);
	until_story($id, '1 http_500', 'one of a type fails where there is a list');
	within(waits($id), 7199, 7200.5, "the type's first wait goes before that, too");
}

# Too much

sub arrival { my ($id) = @_; return ($receiver->requests(id => $id))[0]{arrived} }

hook_to('pause', endpoint => { max_in_flight => 8, min_in_flight => 2 });
for my $case ([ 429, 4, 2 ], [ 503, 2, 3 ])
{
	my ($status, $window, $pause) = @$case;
	my $early = $pause * 1000 - 50;    # ms
	my $id = answered('pause', "flaky?fails=1&status=$status&header=retry-after:$pause");
	until_story($id, "1 http_$status", "$status with Retry-After");
	until_setting(qq{"window", abs(extract(epoch FROM paused_until - last_at) - $pause) < 0.01}, 'pause', "$window|t",
		"leaves a window of $window, and a pause of $pause s");
	my $other = answered('pause', 'status/200');
	my $neighbour = answered('plain', 'status/200');
	until_state($node, $neighbour, 'completed', 'other endpoints go on');
	until_state($node, $other, 'completed', 'another job of the endpoint waits for the end of the pause');
	my ($refused) = $receiver->requests(id => $id);
	within(arrival($other) - $refused->{ended}, $early, 30_000, 'and leaves then');
	cmp_ok(arrival($neighbour), '<', $refused->{ended} + $early, 'others left before') if $pause == 3;
	is(story($node, $other), '1 completed', 'it did not try before');
	until_state($node, $id, 'completed', 'the job that was refused is delivered');
	within(($receiver->requests(id => $id))[1]{arrived} - $refused->{ended}, $early, 30_000, 'after the pause, too');
	until_setting('paused_until IS NULL', 'pause', 't', 'the pause is over');
}
{
	# A job whose own wait is shorter must not end the pause.
	sql(q{SELECT jobq.alter_queue('pause', options => '{"retry_longest": "100 ms"}')});
	my $id = answered('pause', 'flaky?fails=1&status=429&header=retry-after:1');
	until_state($node, $id, 'completed', 'a job may have to wait for less than its endpoint');
	my @requests = $receiver->requests(id => $id);
	within($requests[1]{arrived} - $requests[0]{ended}, 950, 30_000, 'and leaves with the endpoint');
}

{
	my $own = Receiver->start;
	hook_to('window', to => $own, endpoint => { max_in_flight => 8, min_in_flight => 2 });
	my $at = sub { until_setting('"window"', 'window', @_) };
	until_state($node, answered('window', 'status/200'), 'completed', 'an endpoint answers well');
	$at->(8, 'its window is all that it may have in flight');
	until_state($node, answered('window', 'flaky?fails=1&status=503'), 'completed', '503 without Retry-After is retried');
	$at->(4, 'it halves the window');
	is(setting('paused_until IS NULL', 'window'), 't', 'but makes no pause');
	sql(q{SELECT jobq.alter_endpoint('window', options => '{"timeout": "300 ms"}')});
	until_story(answered('window', 'hang', max_attempts => 1), '1 timeout', 'an endpoint does not answer in time');
	sql(q{SELECT jobq.alter_endpoint('window', options => '{"timeout": "30 s"}')});
	$at->(2, 'that halves it too');
	until_story(answered('window', "status/$_", max_attempts => 1), "1 http_$_", "$_ is an answer") for 500, 404;
	$at->(2, 'that does nothing to it');
	until_story(answered('window', 'status/429', max_attempts => 1), '1 http_429', '429 is another');
	$at->(2, 'that makes it no less than min_in_flight');

	$own->reset;
	sql(q{SELECT jobq.push_many('window', array_agg('{}'::jsonb), options => '{"headers": {"receiver": "slow?ms=100"}}')
		FROM generate_series(1, 4)});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'window' AND state IN ('queued', 'running')}, 0,
		'jobs get through a narrow window');
	is($own->stats->{peak_in_flight}, 2, 'two at once');
	$at->(3, 'four good answers make it wider: two by one, two of three not yet');
	sql(q{SELECT jobq.push_many('window', array_agg('{}'::jsonb)) FROM generate_series(1, 60)});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'window' AND state IN ('queued', 'running')}, 0,
		'many more jobs get through');
	$at->(8, 'it grows up to max_in_flight and no further');
	sql(q{SELECT jobq.alter_endpoint('window', options => '{"max_in_flight": 3}')});
	$at->(3, 'it follows max_in_flight');
}

# No more

{
	my $log = -s $node->logfile;
	hook_to('gone');
	my $id = answered('gone', 'flaky?fails=1&status=410');
	until_is($node, q{SELECT enabled FROM jobq.endpoint WHERE name = 'gone'}, 'f', '410 disables the endpoint');
	like(setting('disabled_reason', 'gone'), qr/410/, 'jobq.endpoint_stats says why');
	is(occurrences($node, qr/LOG:  jobq dispatcher: endpoint "gone" answered 410 and is disabled/, $log), 1, 'so does the log');
	is(sql("SELECT state, failures FROM jobq.jobs WHERE id = '$id'"), 'queued|0', 'the job waits and is not charged');
	is(story($node, $id), '1 http_410', 'its attempt is there to be seen');
	my $next = answered('gone', 'status/200');
	until_state($node, answered('plain', 'status/200'), 'completed', 'other endpoints go on');
	is(state_of($node, $next), 'queued', 'another job of the endpoint waits too');
	is(scalar($receiver->requests(id => $id)), 1, 'the first has not left again');
	$node->restart;
	dispatcher($node);
	until_state($node, answered('plain', 'status/200'), 'completed', 'other endpoints go on after a restart');
	is(state_of($node, $_), 'queued', 'its jobs still wait') for $id, $next;
	sql(q{SELECT jobq.alter_endpoint('gone', options => '{"enabled": true}')});
	until_state($node, $_, 'completed', 'an endpoint that is enabled gets its jobs') for $id, $next;
	is(story($node, $id), '1 http_410, 2 completed', 'the first has another attempt');
	is(setting('enabled, disabled_reason IS NULL', 'gone'), 't|t', 'there is no reason any more');
}
{
	my @ids = split /\n/, sql(q{SELECT jobq.push('gone',
		options => '{"max_attempts": 1, "headers": {"receiver": "slow?ms=200&status=410"}}') FROM generate_series(1, 20)});
	my $in = join ', ', map { "'$_'" } @ids;
	until_is($node, q{SELECT enabled FROM jobq.endpoint WHERE name = 'gone'}, 'f', 'many are answered 410 at once');
	until_idle($node, 'all are answered');
	is(sql("SELECT state, count(*) FROM jobq.jobs WHERE id IN ($in) GROUP BY 1"), 'queued|20', 'none is charged');
}

# Rate

{
	my $own = Receiver->start;
	hook_to('rate', to => $own, endpoint => { rate => 4, burst => 3 });
	sql(q{SELECT jobq.push_many('rate', array_agg('{}'::jsonb)) FROM generate_series(1, 9)});
	$own->wait_for(sub { $_[0]{requests} == 9 }, 'nine requests');
	# By the dispatcher's clock: the receiver may be late with each.
	my @at = split /\n/, sql(q{
		SELECT extract(epoch FROM started_at - min(started_at) OVER ()) FROM jobq.jobs WHERE queue = 'rate' ORDER BY started_at});
	note("left after @at s");
	cmp_ok($at[2], '<', 0.1, 'as many as the burst leave at once');
	# The nth needs n - 3 tokens.
	my @early = grep { $at[$_] < ($_ - 2) * 0.25 - 0.02 } 3 .. 8;
	is(@early, 0, 'the others at the rate') || diag("too early: @early");
	cmp_ok($at[8], '<', 15, 'and not much later');
}

# Method

{
	for my $method (qw(PUT PATCH DELETE))
	{
		hook_to("by_$method", endpoint => { method => $method });
		my $id = push_job($node, qq{'by_$method', '{"a": 1}'});
		until_state($node, $id, 'completed', "an endpoint may be asked with $method");
		my ($request) = $receiver->requests(id => $id);
		is("$request->{method} $request->{body}", qq($method {"a": 1}), 'with a body');
	}
}

# Routes

sub path_of { my ($id) = @_; return join ' ', map { $_->{path} } $receiver->requests(id => $id) }

{
	hook_to($_) for qw(route_a route_b);
	sql(q{SELECT jobq.create_queue('routed', options => '{"routes": {"a": "route_a", "b": "route_b"}}')});
	my %ids = map { $_ => push_job($node, "'routed', type => '$_'") } qw(a b c);
	my $plain = push_job($node, q{'routed'});
	my $named = push_job($node, q{'routed', type => 'a', options => '{"endpoint": "route_b"}'});
	until_state($node, $_, 'completed', 'a type with a route is delivered') for @ids{qw(a b)}, $named;
	is(path_of($ids{a}), '/route_a', 'to its endpoint');
	is(path_of($ids{b}), '/route_b', 'each to its own');
	is(path_of($named), '/route_b', 'unless the push names another');
	is(state_of($node, $_), 'unrouted', 'one without a route is unrouted') for $ids{c}, $plain;
	is(sql(q{SELECT unrouted, due FROM jobq.stats WHERE queue = 'routed'}), '2|0', 'jobq.stats counts it');

	sql(q{SELECT jobq.alter_queue('routed', options => '{"routes": {"a": "route_a", "b": "route_b", "c": "route_a"}}')});
	until_state($node, $ids{c}, 'completed', 'it is delivered as soon as it has one');
	is(path_of($ids{c}), '/route_a', 'there');
	is(state_of($node, $plain), 'unrouted', 'another type is not');
	sql(q{SELECT jobq.alter_queue('routed', endpoint => 'route_b')});
	until_state($node, $plain, 'completed', 'until the queue has an endpoint for the rest');
	is(path_of($plain), '/route_b', 'there');
	is(sql(q{SELECT unrouted FROM jobq.stats WHERE queue = 'routed'}), 0, 'then nothing is unrouted');

	sql(q{SELECT jobq.alter_endpoint('route_b', options => '{"enabled": false}')});
	my ($b, $rest) = (push_job($node, q{'routed', type => 'b'}), push_job($node, q{'routed'}));
	until_state($node, push_job($node, q{'routed', type => 'a'}), 'completed', 'one route does not wait for another');
	is(state_of($node, $_), 'queued', 'jobs wait for an endpoint that is disabled') for $b, $rest;
	sql(q{SELECT jobq.alter_queue('routed', options => '{"routes": {"b": "route_a"}}')});
	until_state($node, $b, 'completed', 'another route is for those that wait too');
	is(path_of($b), '/route_a', 'they go there');
	is(state_of($node, $rest), 'queued', 'the others wait on');
	sql(q{SELECT jobq.alter_queue('routed', endpoint => 'route_a')});
	until_state($node, $rest, 'completed', "another endpoint of the queue is for those that wait too");
}

# Responses

hook_to('kept', endpoint => { keep_response => 101 });
{
	my $response = sub {
		my ($how, $state) = @_;
		my $id = answered('kept', $how, max_attempts => 1);
		until_state($node, $id, $state // 'completed', "the answer $how is recorded");
		return sql(qq{SELECT j.result, a.response FROM jobq.jobs AS j JOIN jobq.attempts AS a USING (id) WHERE id = '$id'});
	};
	my $hex = unpack 'H*', "a\0b\xffc\xc3";
	like($response->("bytes?hex=$hex"), qr/^\|a.*b.*c/, 'zeros and bytes that are no text do no harm to the rest');
	like($response->("bytes?hex=$hex&status=500", 'dead'), qr/^\|a.*b.*c/, 'neither with a failure');
	like($response->("bytes?hex=$hex&header=content-type:application/json"), qr/^\|a.*b.*c/, 'nor where they are said to be JSON');
	is($response->('json?body=' . '{"a": "\u0000"}' =~ s/\\/%5C/r), '|{"a": "\u0000"}',
		'JSON that jsonb cannot hold is kept as text');
	is($response->('json?body={"a": [1, 2]}'), '{"a": [1, 2]}|', 'JSON becomes the result');
	is($response->('json?body=' . '[' x 90), '|' . '[' x 90, 'what is none is kept as text');
	like($response->('bytes?hex=' . 'c3a9' x 100), qr/^\|(?:\xc3\xa9){50}(?:\xef\xbf\xbd)?$/,
		'half a character where a text is cut is none');
	is(length $response->('big?bytes=5000000'), 102, 'a long one is cut');
	sql(q{SELECT jobq.alter_endpoint('kept', options => '{"keep_response": 0}')});
	is($response->('status/200'), '|', 'nothing is kept where nothing is to be kept');
}
{
	my $pid = dispatcher($node);
	my $memory = sub { return slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+) kB/m ? $1 / 1024 : die 'no VmHWM' };
	hook_to('big', endpoint => { keep_response => 1048576 });
	until_state($node, answered('big', 'big?bytes=2000000'), 'completed', 'a response of 2 MB is taken');
	my $before = $memory->();
	for my $how ('big?bytes=314572800', 'big?bytes=314572800&chunked=1')
	{
		my $id = answered('big', $how, max_attempts => 1);
		until_state($node, $id, 'dead', "a response of 300 MB fails the attempt ($how)");
		is(story($node, $id), '1 response_too_large', 'as too large');
		cmp_ok((($receiver->requests(id => $id))[0] // {})->{sent}, '<', 200e6, 'not all of it was read');
	}
	my $more = $memory->() - $before;
	note(sprintf 'VmHWM rose by %.1f MB from %.1f MB', $more, $before);
	cmp_ok($more, '<', 20, 'the dispatcher needs little memory for that');
	is(dispatcher($node), $pid, 'and goes on');
}

$node->stop;
done_testing();
