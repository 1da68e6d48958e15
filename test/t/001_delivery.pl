# Deliveries: what a request carries, what becomes of a job by its answer, and what is sent when.
# The periodic scan is as good as off: whatever arrives was announced or timed.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use JSON::PP;
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;

my $node = jobq_node('delivery', conf => [ 'jobq.scan_interval = 1h' ]);
my $receiver = Receiver->start;

sub sql { return $node->safe_psql('postgres', $_[0]) }
sub push_to { return push_job($node, @_) }

sub requests_for
{
	my ($id) = @_;
	return $receiver->requests(id => $id);
}

# In the order of their arrival, the named field of the requests to a queue.
sub arrivals
{
	my ($queue, $field) = @_;
	return map { $_->{$field} } grep { $_->{queue} eq $queue } $receiver->requests;
}

my $pid = dispatcher($node);

# What a request carries

hook($node, 'request', $receiver->url('/ok'),
	endpoint => { headers => { 'x-endpoint' => 'from endpoint', 'x-both' => 'from endpoint' } });
{
	my $id = push_to(q{'request', '{"a": 1, "b": [true, null, "\u00fc"]}', type => 'greet',
		options => '{"headers": {"x-job": "from job", "x-both": "from job"}}'});
	until_state($node, $id, 'completed', 'a pushed job is delivered and completed');
	my ($request, @more) = requests_for($id);
	is(@more, 0, 'it is delivered once, with its id as webhook-id');
	is($request->{method}, 'POST', 'the request is a POST');
	is($request->{body}, qq({"a": 1, "b": [true, null, "\x{fc}"]}), 'the body is the payload');
	my $headers = $request->{headers};
	is($headers->{'content-type'}, 'application/json', 'the content type is JSON');
	is($headers->{'jobq-queue'}, 'request', 'jobq-queue names the queue');
	is($headers->{'jobq-type'}, 'greet', 'jobq-type names the type');
	is($headers->{'jobq-attempt'}, '1', 'jobq-attempt counts from 1');
	is($headers->{'x-endpoint'}, 'from endpoint', 'headers of the endpoint are sent');
	is($headers->{'x-job'}, 'from job', 'headers of the job are sent');
	is($headers->{'x-both'}, 'from job', 'a header of the job takes the place of the same one of the endpoint');
	like($headers->{'user-agent'}, qr/^jobq\//, 'the user agent is jobq');
}
{
	my $id = push_to(q{'request'});
	until_state($node, $id, 'completed', 'a job without payload and type is delivered');
	my ($request) = requests_for($id);
	is($request->{body}, '{}', 'its body is an empty object');
	ok(!exists $request->{headers}{'jobq-type'}, 'it has no jobq-type');
}
{
	my $text = sql(q{SELECT jobq.push_bytes('request', 'plain', 'text/plain; charset=utf-8', type => 'note')});
	my $bytes = sql(q{SELECT jobq.push_bytes('request', '\x00ff0d0a')});
	my $empty = sql(q{SELECT jobq.push_bytes('request', '')});
	until_state($node, $_, 'completed', 'a job pushed as bytes is delivered') for $text, $bytes, $empty;
	my ($request) = requests_for($text);
	is($request->{body}, 'plain', 'bytes are sent as they are');
	is($request->{headers}{'content-type'}, 'text/plain; charset=utf-8', 'with the content type given at push');
	is($request->{type}, 'note', 'and with their type');
	($request) = requests_for($bytes);
	is($request->{bytes}, 4, 'zeros and line ends in a body are bytes like others');
	is($request->{headers}{'content-type'}, 'application/octet-stream', 'a content type not given is octet-stream');
	is((requests_for($empty))[0]{bytes}, 0, 'a body may be empty');
}
{
	my $id = push_to(q{'request', jsonb_build_object('text', repeat('x', 1000000))});
	until_state($node, $id, 'completed', 'a payload of a megabyte is delivered');
	is((requests_for($id))[0]{bytes}, 1000012, 'and arrives whole');
}

{
	# In a database of another encoding: é is one byte there.
	$node->safe_psql('postgres', q{CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'});
	$node->safe_psql('latin1', 'CREATE EXTENSION jobq');
	hook($node, 'latin', $receiver->url('/json'), database => 'latin1');
	my $id = push_to(q{'latin', '{"a": "\u00e9"}', type => chr(233)}, 'latin1');
	until_state($node, $id, 'completed', 'a database of another encoding delivers', database => 'latin1');
	my ($request) = requests_for($id);
	is($request->{body}, qq({"a": "\x{e9}"}), 'its payloads are sent as UTF-8');
	is($request->{type}, "\xc3\xa9", 'and so are its headers');
	$node->safe_psql('latin1', q{SELECT jobq.alter_endpoint('latin', headers => '{"x-of": "\u00e9"}')});
	is($node->safe_psql('latin1', q{SELECT outcome FROM jobq.send_test('latin')}), 'completed', 'also those of a test');
	$id = push_to(q{'latin', options => '{"headers": {"receiver": "json?body={\"a\": \"%E2%82%AC\"}"}}'}, 'latin1');
	until_state($node, $id, 'completed', 'an answer that its encoding cannot hold completes the job', database => 'latin1');
}

# 2xx completes

hook($node, 'answer', $receiver->url('/ok'), endpoint => { keep_response => 100 });
{
	my %ids = map { $_ => push_to(qq{'answer', options => '{"headers": {"receiver": "status/$_"}}'}) } 200, 201, 204, 299;
	for my $status (sort keys %ids)
	{
		until_state($node, $ids{$status}, 'completed', "status $status completes the job");
		is(sql(qq{SELECT outcome, status_code, error IS NULL FROM jobq.attempts WHERE id = '$ids{$status}'}),
			"completed|$status|t", "status $status stands with its attempt");
	}
	my $id = $ids{200};
	is(sql(qq{SELECT result IS NULL FROM jobq.jobs WHERE id = '$id'}), 't', 'a text is no result');
	is(sql(qq{SELECT response FROM jobq.attempts WHERE id = '$id'}), 'status 200', 'a text is kept as the response');
	is(sql(qq{
			SELECT created_at <= started_at AND started_at <= finished_at AND duration = finished_at - started_at
			FROM jobq.jobs WHERE id = '$id'}), 't', 'created, started, finished and the duration are recorded');
}

sub answered
{
	my ($how) = @_;
	my $id = push_to(sprintf q{'answer', options => '%s'}, encode_json({ headers => { receiver => $how } }));
	until_state($node, $id, 'completed', "the answer $how completes the job");
	return sql(qq{
		SELECT j.result, length(a.response) FROM jobq.jobs AS j JOIN jobq.attempts AS a USING (id) WHERE id = '$id'});
}
is(answered('json?body={"sent": [1, 2]}'), '{"sent": [1, 2]}|', 'a JSON body becomes the result');
is(answered('json?body={"sent"'), '|7', 'a body that only says it is JSON is kept as the response');
is(answered('big?bytes=1000'), '|100', 'a long response is cut to what the endpoint keeps');
is(answered('json?body={"sent": "' . 'x' x 200 . '"}'), '|100', 'JSON longer than that is not read as a result');

# Anything else fails the attempt

hook($node, 'retry', $receiver->url('/fail'),
	queue => { max_attempts => 3, retry_first => '200 ms', retry_factor => 2, retry_jitter => 0,
		types => { once => { max_attempts => 1 } } });
{
	my $id = push_to(q{'retry'});
	until_state($node, $id, 'dead', 'a job that always fails is dead in the end');
	my @requests = requests_for($id);
	is(join(' ', map { $_->{attempt} } @requests), '1 2 3',
		'it was tried max_attempts times, with the same webhook-id and a rising jobq-attempt');
	is(story($node, $id), '1 http_500, 2 http_500, 3 http_500', 'each attempt stands in jobq.attempts');
	is(sql(qq{SELECT DISTINCT status_code, response, error IS NOT NULL FROM jobq.attempts WHERE id = '$id'}),
		'500|failed|t', 'with its status, response and error');
	like(sql(qq{SELECT error FROM jobq.jobs WHERE id = '$id'}), qr/500/, 'a dead job says why');
	my @waits = map { $requests[$_]{arrived} - $requests[ $_ - 1 ]{ended} } 1, 2;
	note("waits of @waits ms for 200 and 400");
	cmp_ok($waits[0], '>=', 190, 'the first retry waits for retry_first');
	cmp_ok($waits[1], '>=', 390, 'the second waits for longer by retry_factor');

	sql(qq{SELECT jobq.retry('$id')});
	until_is($node, qq{SELECT count(*) FROM jobq.attempts WHERE id = '$id' AND outcome = 'http_500'}, 6,
		'jobq.retry gives a dead job its attempts again');
	until_state($node, $id, 'dead', 'and it may die again');
	is(join(' ', map { $_->{attempt} } requests_for($id)), '1 2 3 4 5 6', 'its attempt numbers go on');
}
{
	my $id = push_to(q{'retry', type => 'once'});
	until_state($node, $id, 'dead', 'a type with settings of its own is retried by these');
	is(story($node, $id), '1 http_500', 'here not at all');
}
{
	my $id = push_to(q{'retry', options => '{"headers": {"receiver": "flaky?fails=2"}}'});
	until_state($node, $id, 'completed', 'a job that fails twice is completed at last');
	is(story($node, $id), '1 http_500, 2 http_500, 3 completed', 'with its story');
	is(sql(qq{SELECT attempt, failures FROM jobq.jobs WHERE id = '$id'}), '3|2', 'attempts and failures are counted');
}
{
	my %outcome = (
		302 => push_to(sprintf q{'retry', type => 'once', options => '%s'},
			encode_json({ headers => { receiver => 'status/302?location=' . $receiver->url('/followed') } })),
		map { $_ => push_to(qq{'retry', type => 'once', options => '{"headers": {"receiver": "status/$_"}}'}) }
		  400, 404, 429, 503);
	for my $status (sort keys %outcome)
	{
		until_state($node, $outcome{$status}, 'dead', "status $status fails the attempt");
		is(story($node, $outcome{$status}), "1 http_$status", "and is its outcome http_$status");
	}
	is(scalar(() = $receiver->requests(path => '/followed')), 0, 'a redirect is not followed');
}

# Requests that get no answer

{
	my $unused = PostgreSQL::Test::Cluster::get_free_port();
	my %urls = (
		connection_refused => "http://127.0.0.1:$unused/",
		connection_reset => $receiver->url('/reset'),
		timeout => $receiver->url('/hang'),
		tls_error => 'https://127.0.0.1:' . $receiver->port . '/',
		# A label of more than 63 bytes is no name that anybody would be asked for.
		dns_error => 'http://' . 'x' x 64 . '.invalid/',
	);
	my %ids;
	for my $outcome (sort keys %urls)
	{
		hook($node, $outcome, $urls{$outcome},
			endpoint => { timeout => $outcome eq 'timeout' ? '200 ms' : '30 s' }, queue => { max_attempts => 1 });
		$ids{$outcome} = push_to("'$outcome'");
	}
	for my $outcome (sort keys %urls)
	{
		until_state($node, $ids{$outcome}, 'dead', "$outcome fails the attempt");
		is(sql(qq{SELECT outcome, status_code IS NULL, error <> '' FROM jobq.attempts WHERE id = '$ids{$outcome}'}),
			"$outcome|t|t", "and is its outcome $outcome, with an error and without a status");
	}
	my $id = push_to(q{'timeout', options => '{"headers": {"receiver": "late?ms=60000"}}'});
	until_state($node, $id, 'dead', 'an answer that does not come to its end fails the attempt');
	is(story($node, $id), '1 timeout', 'as a timeout too');
}

# Times

hook($node, 'timed', $receiver->url('/ok'),
	queue => { retry_first => '300 ms', retry_jitter => 0, max_attempts => 2 });
{
	my @ids = split /\n/, sql(q{
		SELECT jobq.push('timed', delay => make_interval(secs => 0.8 + n * 0.4)) FROM generate_series(1, 5) AS n});
	until_state($node, $ids[-1], 'completed', 'scheduled jobs are delivered');
	my %due = map { split /\|/ } split /\n/,
	  sql(q{SELECT id, extract(epoch FROM run_at) * 1000 FROM jobq.jobs WHERE queue = 'timed'});
	my @late = map { (requests_for($_))[0]{arrived} - $due{$_} } @ids;
	note("late by @late ms");
	# The receiver's clock is right to a millisecond.
	cmp_ok(min(@late), '>=', -2, 'none goes out before it is due');
	cmp_ok(min(@late), '<', 200, 'one goes out when it is due');
	cmp_ok(max(@late), '<', 20_000, 'all of them long before a scan');

	my $far = push_to(q{'timed', delay => '1 day'});
	my $near = push_to(q{'timed', delay => '300 ms'});
	until_state($node, $near, 'completed', 'a job scheduled behind one for a later time goes first');
	is(state_of($node, $far), 'queued', 'the later one waits');
	my $at = push_to(q{'timed', run_at => clock_timestamp() + interval '200 ms'});
	until_state($node, $at, 'completed', 'run_at is as good as delay');

	my $retried = push_to(q{'timed', options => '{"headers": {"receiver": "flaky"}}'});
	until_state($node, $retried, 'completed', 'a retry goes out when it is due, not at the next scan');
}

# Transactions

{
	my ($out, $kept) = split /\n/, sql(q{
		BEGIN;
		SELECT jobq.push('timed');
		SAVEPOINT a;
		SELECT jobq.push('timed', type => 'undone');
		ROLLBACK TO a;
		SELECT jobq.push('timed', type => 'undone too');
		ROLLBACK;
		SELECT jobq.push('timed', type => 'done');}) =~ s/\A(.*\n)*//r;
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE type = 'done' AND state = 'completed'}, 1,
		'a committed push after a rollback is delivered');
	is(scalar(grep { ($_->{type} // '') =~ /undone/ } $receiver->requests), 0, 'pushes rolled back are not delivered');
	is(sql(q{SELECT count(*) FROM jobq.jobs WHERE type LIKE 'undone%'}), 0, 'and leave no job');
}
{
	my $open = session($node);
	$open->query_safe(q{BEGIN; SELECT jobq.push('timed', type => 'open')});
	my $other = push_to(q{'timed', type => 'other'});
	until_state($node, $other, 'completed', 'a push of another session is delivered meanwhile');
	is(scalar(grep { ($_->{type} // '') eq 'open' } $receiver->requests), 0, 'a push not committed is not delivered');
	$open->query_safe('COMMIT');
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE type = 'open' AND state = 'completed'}, 1,
		'and is when it is committed');
	close_session($open);
}

# Order

hook($node, 'priority', $receiver->url('/ok'), endpoint => { max_in_flight => 1 });
{
	sql(q{
		SELECT jobq.pause('priority');
		SELECT jobq.push('priority', type => 'low', priority => 10);
		SELECT jobq.push('priority', type => 'normal');
		SELECT jobq.push('priority', type => 'normal, second');
		SELECT jobq.push('priority', type => 'high', priority => -10);
		SELECT jobq.push('priority', type => 'lowest', priority => 32767);
		SELECT jobq.push('priority', type => 'highest', priority => -32768);
		SELECT jobq.resume('priority')});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'priority' AND state = 'completed'}, 6,
		'jobs of six priorities are delivered');
	is(join(', ', arrivals('priority', 'type')), 'highest, high, normal, normal, second, low, lowest',
		'lower numbers go first, and equal ones in the order of pushes');
}

hook($node, 'group', $receiver->url('/slow?ms=5'), queue => { retry_first => '20 ms', retry_jitter => 0.5 });
{
	# Every third job fails once; a head that waits for its retry holds its group.
	my @ids = split /\n/, sql(q{
		SELECT jobq.push('group', jsonb_build_object('n', n), group_key => 'group ' || n % 4,
			priority => (n * 7) % 5, options => CASE WHEN n % 3 = 0 THEN '{"headers": {"receiver": "flaky?fails=1"}}'::jsonb END)
		FROM generate_series(1, 60) AS n});
	my $free = push_to(q{'group', '{}'});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'group' AND state = 'completed'}, 61,
		'jobs of four groups are delivered');
	my %number = map { $ids[$_] => $_ + 1 } 0 .. $#ids;
	my (%last, $overlaps, $disorder, $requests);
	for my $request (grep { exists $number{ $_->{id} // '' } } $receiver->requests)
	{
		my $n = $number{ $request->{id} };
		my $before = $last{ $n % 4 };
		$overlaps++ if $before && $request->{arrived} < $before->{ended};
		$disorder++ if $before && $n < $number{ $before->{id} };
		$last{ $n % 4 } = $request;
		$requests++;
	}
	is($requests, 80, 'a third of them twice');
	is($overlaps, undef, 'two jobs of one group are never under way at once');
	is($disorder, undef, 'a group goes in the order of pushes, retries and priorities notwithstanding');
}
{
	my $dies = push_to(q{'group', group_key => 'dies', options => '{"max_attempts": 1, "headers": {"receiver": "fail"}}'});
	my $next = push_to(q{'group', group_key => 'dies'});
	until_state($node, $next, 'completed', 'a job that is dead lets its group go on');
	is(state_of($node, $dies), 'dead', 'the dead one stays dead');
}

# Limits

{
	my $own = Receiver->start;
	# With timeouts so long that none of their timers wakes a dispatcher that overlooked an answer.
	my %patient = (timeout => '1 h', connect_timeout => '1 h');
	hook($node, 'single', $own->url('/ok'), endpoint => { max_in_flight => 1, %patient });
	my $ids = sql(q{SELECT jobq.push('single') FROM generate_series(1, 1000)});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'single' AND state = 'completed'}, 1000,
		'1000 jobs go out one by one without a stop', seconds => 55);
	is(join("\n", map { $_->{id} } $own->requests), $ids, 'in the order of their pushes');

	$own->reset;
	hook($node, 'narrow', $own->url('/slow?ms=10'), endpoint => { max_in_flight => 3, %patient });
	sql(q{SELECT count(jobq.push('narrow')) FROM generate_series(1, 60)});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'narrow' AND state = 'completed'}, 60,
		'all jobs get through a narrow endpoint', seconds => 45);
	is($own->stats->{peak_in_flight}, 3, 'with as many in flight at once as it may have');

	$own->reset;
	sql(q{
		SELECT jobq.create_queue('narrow too', endpoint => 'narrow');
		SELECT jobq.push_many(queue, array_agg('{}'::jsonb))
		FROM (VALUES ('narrow'), ('narrow too')) AS q (queue), generate_series(1, 20) GROUP BY queue});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue LIKE 'narrow%' AND state = 'completed'}, 100,
		'two queues share an endpoint');
	is($own->stats->{peak_in_flight}, 3, 'and its limit');

	$own->reset;
	hook($node, 'limited', $own->url('/slow?ms=10'), queue => { max_running => 2 });
	sql(q{SELECT count(jobq.push('limited')) FROM generate_series(1, 30)});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'limited' AND state = 'completed'}, 30,
		'all jobs get through a limited queue');
	is($own->stats->{peak_in_flight}, 2, 'with as many running at once as it may have');

	$own->reset;
	hook($node, 'wide', $own->url('/slow?ms=1000'));
	sql(q{SELECT jobq.push_many('wide', array_agg('{}'::jsonb)) FROM generate_series(1, 80)});
	$own->wait_for(sub { $_[0]{peak_in_flight} >= 50 }, '50 requests in flight');
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'wide' AND state = 'completed'}, 80,
		'all jobs get through an endpoint by default');
	is($own->stats->{peak_in_flight}, 50, 'with 50 in flight at once');

	$own->reset;
	$node->append_conf('postgresql.conf', 'jobq.max_in_flight = 7');
	$node->reload;
	until_is($node, q{SELECT setting FROM pg_settings WHERE name = 'jobq.max_in_flight'}, 7, 'jobq.max_in_flight is reloaded');
	sql(q{SELECT jobq.push_many('wide', array_agg('{}'::jsonb)) FROM generate_series(1, 14)});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'wide' AND state = 'completed'}, 94,
		'all jobs get through with jobq.max_in_flight = 7');
	is($own->stats->{peak_in_flight}, 7, 'which holds for the dispatcher as a whole');
	$node->append_conf('postgresql.conf', 'jobq.max_in_flight = 1000');
	$node->reload;
}

# Neighbours

{
	my $own = Receiver->start;
	hook($node, 'hanging', $own->url('/hang'), endpoint => { timeout => '10 min' });
	hook($node, 'refused', 'http://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port() . '/',
		queue => { retry_first => '1 h' });
	hook($node, 'fast', $receiver->url('/ok'));
	sql(q{SELECT jobq.push_many(queue, array_agg('{}'::jsonb))
		FROM (VALUES ('hanging'), ('refused')) AS q (queue), generate_series(1, 200) GROUP BY queue});
	$own->wait_for(sub { $_[0]{in_flight} == 50 }, 'an endpoint that hangs to have all its requests');
	sql(q{SELECT jobq.push_many('fast', array_agg('{}'::jsonb)) FROM generate_series(1, 500)});
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'fast' AND state = 'completed'}, 500,
		'a fast endpoint is served beside one that hangs and one that is down');
	is($own->stats->{in_flight}, 50, 'while the other still hangs');
	is($own->stats->{requests}, 50, 'and got no more than its share');
	is(sql(q{SELECT running, due FROM jobq.stats WHERE queue = 'hanging'}), '50|150', 'jobq.stats shows what runs and what waits');
	sql(q{SELECT jobq.drop_queue('hanging', force => true)});
}

# Settings

hook($node, 'paused', $receiver->url('/ok'));
{
	sql(q{SELECT jobq.pause('paused')});
	my $id = push_to(q{'paused'});
	my $other = push_to(q{'fast'});
	until_state($node, $other, 'completed', 'another queue goes on');
	is(state_of($node, $id), 'queued', 'a job of a paused queue waits');
	sql(q{SELECT jobq.resume('paused')});
	until_state($node, $id, 'completed', 'and goes out when it is resumed');
}
{
	hook($node, 'moved', $receiver->url('/before'));
	until_state($node, push_to(q{'moved'}), 'completed', 'an endpoint is used at its URL');
	sql(sprintf q{UPDATE jobq.endpoint SET url = '%s', headers = '{"x-new": "yes"}' WHERE name = 'moved'},
		$receiver->url('/after'));
	my $id = push_to(q{'moved'});
	until_state($node, $id, 'completed', 'and at another one after an UPDATE of its row');
	my ($request) = requests_for($id);
	is($request->{path}, '/after', 'to which the next job goes');
	is($request->{headers}{'x-new'}, 'yes', 'with the new headers');
}
{
	hook($node, 'closed', $receiver->url('/closed'));
	sql(q{SELECT jobq.alter_endpoint('closed', options => '{"enabled": false}')});
	my $id = push_to(q{'closed'});
	my $named = push_to(q{'fast', options => '{"endpoint": "closed"}'});
	my $other = push_to(q{'fast'});
	until_state($node, $other, 'completed', 'another endpoint goes on');
	is(state_of($node, $id), 'queued', 'a job for a disabled endpoint waits');
	is(state_of($node, $named), 'queued', 'also one that names it');
	sql(q{SELECT jobq.alter_endpoint('closed', options => '{"enabled": true}')});
	until_state($node, $id, 'completed', 'and goes out when it is enabled');
	until_state($node, $named, 'completed', 'also one that names it');
}
{
	hook($node, 'other', $receiver->url('/other'), endpoint => { headers => { 'x-of' => 'other' } });
	my $id = push_to(q{'fast', options => '{"endpoint": "other"}'});
	until_state($node, $id, 'completed', 'a job may name another endpoint than its queue has');
	my ($request) = requests_for($id);
	is($request->{path}, '/other', 'and is delivered there');
	is($request->{headers}{'x-of'}, 'other', 'with its headers');
	is($request->{queue}, 'fast', 'as a job of its queue');
}

{
	hook($node, 'leaving', $receiver->url('/ok'), endpoint => { enabled => JSON::PP::false });
	my $id = push_to(q{'leaving'});
	until_state($node, push_to(q{'request'}), 'completed', 'the dispatcher has met a queue whose endpoint takes nothing');
	sql(sprintf q{
		BEGIN;
		SELECT jobq.create_endpoint('coming', '%s');
		SELECT jobq.alter_queue('leaving', endpoint => 'coming');
		SELECT jobq.drop_endpoint('leaving');
		COMMIT;}, $receiver->url('/ok'));
	until_state($node, $id, 'completed', 'jobs go to the endpoint that has taken the place of a dropped one');
}

# Ends before the end

{
	sql(q{SELECT jobq.pause('paused')});
	my $id = push_to(q{'paused', options => jsonb_build_object('expires_at', clock_timestamp() + interval '50 ms')});
	until_is($node, qq{SELECT expires_at < clock_timestamp() FROM jobq.jobs WHERE id = '$id'}, 't', 'a job comes to expire');
	my $last = push_to(q{'paused', options => jsonb_build_object('expires_at', clock_timestamp() + interval '1 day')});
	sql(q{SELECT jobq.resume('paused')});
	until_state($node, $last, 'completed', 'a job that expires later is delivered');
	until_state($node, $id, 'expired', 'one that has expired is not');
	is(scalar(() = requests_for($id)), 0, 'it never left');
}
{
	my $own = Receiver->start;
	hook($node, 'cancelled', $own->url('/slow?ms=700'));
	my $id = push_to(q{'cancelled'});
	$own->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request in flight');
	is(state_of($node, $id), 'running', 'a job in flight is running');
	sql(qq{SELECT jobq.cancel('$id')});
	is(state_of($node, $id), 'cancelled', 'it may be cancelled in flight');
	$own->wait_for(sub { $_[0]{answered} == 1 }, 'its answer');
	until_idle($node, 'its answer is taken');
	is(state_of($node, $id), 'cancelled', 'and changes nothing');
	is(story($node, $id), '1 cancelled', 'the attempt was cancelled');
}
{
	my $own = Receiver->start;
	hook($node, 'revived', $own->url('/slow?ms=500'));
	my $id = push_to(q{'revived'});
	$own->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request in flight');
	sql(qq{SELECT jobq.cancel('$id'); SELECT jobq.retry('$id')});
	$own->wait_for(sub { $_[0]{in_flight} == 2 }, 'another');
	$own->wait_for(sub { $_[0]{answered} >= 1 }, 'the answer to the first');
	until_state($node, $id, 'completed', 'a job cancelled in flight may be retried at once');
	is(story($node, $id), '1 cancelled, 2 completed', 'the answer to its first attempt is not taken for one to the second');
	is($own->stats->{answered}, 2, 'which had its own');
}
{
	# However that comes about: an endpoint may have a longer timeout than it had when the job was claimed.
	my $own = Receiver->start;
	hook($node, 'leased', $own->url('/slow?ms=1000'));
	my $id = push_to(q{'leased', group_key => 'g'});
	my $next = push_to(q{'leased', group_key => 'g'});
	$own->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request in flight');
	sql(qq{UPDATE jobq.job SET lease_until = clock_timestamp() - interval '1 s' WHERE id = '$id'});
	sql('NOTIFY jobq');
	sql('SELECT jobq.maintain()');
	until_state($node, $next, 'completed', 'two jobs of a group are delivered');
	is(story($node, $id), '1 completed', 'a request in flight ends by its timeout, not by a lease');
	is($own->stats->{peak_in_flight}, 1, 'so that the next of its group is not sent beside it');
}
{
	my $own = Receiver->start;
	hook($node, 'dropped', $own->url('/slow?ms=700'));
	push_to(q{'dropped'});
	$own->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request in flight');
	sql(q{SELECT jobq.drop_queue('dropped', force => true); SELECT jobq.drop_endpoint('dropped')});
	$own->wait_for(sub { $_[0]{answered} == 1 }, 'its answer');
	until_idle($node, 'a queue and its endpoint may be dropped with jobs in flight');
	until_state($node, push_to(q{'fast'}), 'completed', 'the others go on');
}

# A receiver that comes back

{
	my $own = Receiver->start;
	hook($node, 'restarted', $own->url('/ok'), queue => { max_attempts => 1 });
	until_state($node, push_to(q{'restarted'}), 'completed', 'a receiver gets a job');
	$own->restart;
	until_state($node, push_to(q{'restarted'}), 'completed', 'and another one after its restart, by a new connection');
}

is(sql(q{SELECT count(lease_until) FROM jobq.job}), 0, 'no job is left running');
is(occurrences($node, qr/(?:ERROR|FATAL|PANIC|LOG):  jobq dispatcher/), 0, 'the dispatcher met no error');

# Locks that clients hold

{
	my $own = Receiver->start;
	hook($node, 'locked', $own->url('/slow?ms=300'), queue => { retry_first => '100 ms', retry_jitter => 0 });
	my $id = push_to(q{'locked'});
	$own->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request in flight');
	my $session = session($node);
	$session->query_safe(qq{BEGIN; SELECT jobq.cancel('$id')});
	my $others = join ', ', map { "'$_'" } split /\n/, sql(q{SELECT jobq.push('locked') FROM generate_series(1, 10)});
	until_is($node, qq{SELECT count(*) FROM jobq.jobs WHERE id IN ($others) AND state = 'completed'}, 10,
		'a job that somebody has locked does not hold the outcomes of others');
	is(state_of($node, $id), 'running', 'its own waits');
	$session->query_safe('ROLLBACK');
	until_state($node, $id, 'completed', 'and is recorded when the lock is gone');
	is(story($node, $id), '1 completed', 'without another delivery');

	hook($node, 'keyed', $own->url('/ok'), endpoint => { timeout => '500 ms' },
		queue => { max_attempts => 2, retry_first => '100 ms', retry_jitter => 0 });
	for my $end (qw(COMMIT ROLLBACK))
	{
		# It fails while a push of its key is under way: whether it may wait again is not known yet.
		$own->reset;
		$id = push_to(q{'keyed', unique_key => 'key', options => '{"headers": {"receiver": "hang"}}'});
		$own->wait_for(sub { $_[0]{in_flight} == 1 }, 'a request in flight');
		$session->query_safe('BEGIN');
		my $newer = $session->query_safe(q{SELECT jobq.push('keyed', unique_key => 'key', delay => '1 day')});
		my $other = push_to(q{'keyed', options => '{"max_attempts": 1, "headers": {"receiver": "hang"}}'});
		until_state($node, $other, 'dead', 'a push of a unique key does not hold the outcomes of other jobs');
		is(state_of($node, $id), 'running', 'but that of the job that has the key');
		$session->query_safe($end);
		until_state($node, $id, $end eq 'COMMIT' ? 'cancelled' : 'dead', "which is recorded after $end");
		is(story($node, $id), $end eq 'COMMIT' ? '1 timeout' : '1 timeout, 2 timeout', 'accordingly');
		is(state_of($node, $newer), $end eq 'COMMIT' ? 'queued' : '', 'the newer one waits, or is not there');
		sql(q{SELECT jobq.clear('keyed')});
	}

	$own->reset;
	sql(q{SELECT jobq.push('locked') FROM generate_series(1, 10)});
	$own->wait_for(sub { $_[0]{in_flight} == 10 }, 'requests in flight');
	$session->query_safe('BEGIN; LOCK TABLE jobq.finished');
	$own->wait_for(sub { $_[0]{answered} == 10 }, 'their answers');
	until_is($node, qq{SELECT count(*) > 0 FROM pg_locks WHERE pid = $pid AND NOT granted}, 't',
		'a lock on a table is in the dispatcher\'s way');
	$session->query_safe('COMMIT');
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'locked' AND state NOT IN ('completed', 'cancelled')}, 0,
		'it goes on when that is gone');
	is($own->stats->{requests}, 10, 'and has kept the answers in mind');
	is(dispatcher_pid($node, 'postgres'), $pid, 'it is the same dispatcher all the time');
	hook($node, 'gone', $receiver->url('/status/410'));
	$session->query_safe(q{BEGIN; SELECT FROM jobq.endpoint WHERE name = 'gone' FOR UPDATE});
	$id = push_to(q{'gone'});
	until_is($node, q{SELECT failed FROM jobq.endpoint_stats WHERE endpoint = 'gone'}, 1, 'an endpoint wants no more while its row is locked');
	$session->query_safe('ROLLBACK');
	until_is($node, q{SELECT enabled FROM jobq.endpoint WHERE name = 'gone'}, 'f', 'and is disabled when the lock is gone');
	until_is($node, qq{SELECT state, failures FROM jobq.jobs WHERE id = '$id'}, 'queued|0', 'its job waits');
	close_session($session);
}

done_testing();
