# Signatures: each request verifies by the official library of Standard Webhooks (see test/receiver.js), also
# while a secret is rotated; and a secret stands nowhere but where managers look for it.
use strict;
use warnings;
use Digest::SHA 'hmac_sha256';
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use JSON::PP;
use MIME::Base64;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;

my $node = jobq_node('signed', conf => [
	'log_statement = all', 'log_min_messages = debug1', 'log_min_duration_statement = 0',
	'log_parameter_max_length = -1', 'log_parameter_max_length_on_error = -1' ]);
my $receiver = Receiver->start;

# Every secret there was, to look for at the end.
my %secrets;

sub sql { return $node->safe_psql('postgres', $_[0]) }
sub push_to { return push_job($node, @_) }

# An endpoint's secrets, newest first.
sub secrets_of
{
	my ($name) = @_;
	my @secrets = split /\n/, sql(qq{SELECT secret FROM jobq.secrets('$name')});
	$secrets{$_} = 1 for @secrets;
	return @secrets;
}

# Pushes what the arguments say and returns its only request, verified or not.
sub delivered
{
	my ($push, $name) = @_;
	my $id = sql("SELECT jobq.$push");
	until_state($node, $id, 'completed', $name);
	my ($request, @more) = $receiver->requests(id => $id);
	is(@more, 0, 'at the first attempt');
	return $request;
}

sub signatures { my ($request) = @_; return split / /, $request->{headers}{'webhook-signature'} // '' }

hook($node, 'signed', $receiver->url('/ok'), queue => { retry_first => '50 ms', retry_jitter => 0 });
my ($first, @more) = secrets_of('signed');
is(@more, 0, 'an endpoint has one secret without being given any');
like($first, qr{^whsec_[A-Za-z0-9+/]+=*$}, 'written as Standard Webhooks wants it');
{
	my $length = length decode_base64($first =~ s/^whsec_//r);
	ok($length >= 24 && $length <= 64, "of 24 to 64 bytes ($length)");
}
is(sql(q{SELECT created_at BETWEEN now() - interval '1 h' AND now(), expires_at IS NULL FROM jobq.secrets('signed')}), 't|t',
	'it is new, and does not expire');
hook($node, 'neighbour', $receiver->url('/ok'));
isnt((secrets_of('neighbour'))[0], $first, 'another endpoint has another one');

# Without this the tests below would pass a receiver that takes everything.
$receiver->verify_with('whsec_' . encode_base64('x' x 32, ''));
{
	my $id = push_to(q{'signed', options => '{"max_attempts": 1}'});
	until_state($node, $id, 'dead', 'a receiver that has another secret refuses a delivery');
	is(story($node, $id), '1 http_401', 'with 401');
	is((($receiver->requests(id => $id))[0] // {})->{refused}, 'No matching signature found', 'because of its signature');
}

$receiver->verify_with($first);
{
	my $request = delivered(q{push('signed', '{"a": 1}')}, 'a delivery verifies with the official library');
	is(scalar(signatures($request)), 1, 'there is one signature');
	like($request->{headers}{'webhook-timestamp'}, qr/^\d{10}$/, 'the timestamp is in whole seconds');
	cmp_ok(abs($request->{headers}{'webhook-timestamp'} - $request->{arrived} / 1000), '<', 60, 'and tells when it left');
	delivered(q{push('signed', '{"text": "\u00fc\u20ac\ud83d\ude00"}')}, 'a payload that is not ASCII verifies');
	delivered(q{push('signed')}, 'an empty payload verifies');
	delivered(q{push('signed', jsonb_build_object('text', repeat('x', 500000)))}, 'a large payload verifies');
	delivered(q{push_bytes('signed', 'plain, not JSON', 'text/plain')}, 'a text verifies');
	delivered(q{push_bytes('signed', '')}, 'a body of nothing verifies');
	delivered(q{push_bytes('signed', '\x00410d0a00')}, 'bytes with zeros and line ends verify');
	delivered(q{push('signed', options => '{"headers": {"x-more": "1"}}')}, 'headers of the job change nothing');
}
{
	# The library makes text of a body, so that the receiver has only its rules for this one: hashed once more here.
	my $request = delivered(q{push_bytes('signed', '\xfffe00800a')}, 'bytes that are not UTF-8 verify');
	my $headers = $request->{headers};
	is($request->{base64}, encode_base64("\xff\xfe\x00\x80\x0a", ''), 'and arrive as they are');
	my $hash = hmac_sha256("$headers->{'webhook-id'}.$headers->{'webhook-timestamp'}.\xff\xfe\x00\x80\x0a",
		decode_base64($first =~ s/^whsec_//r));
	is($headers->{'webhook-signature'}, 'v1,' . encode_base64($hash, ''), 'it is their bytes that are signed');
}
{
	sql(q{SELECT jobq.alter_endpoint('signed', options => '{"gzip": true}')});
	my $request = delivered(q{push('signed', jsonb_build_object('text', repeat('x', 10000)))}, 'a compressed payload verifies');
	is($request->{headers}{'content-encoding'}, 'gzip', 'as it is when it is unpacked');
	cmp_ok($request->{bytes}, '<', 1000, 'though it was sent compressed');
	sql(q{SELECT jobq.alter_endpoint('signed', options => '{"gzip": false}')});
}
{
	# The first wait is as long as it takes for the clock to show another second.
	sql(q{SELECT jobq.alter_queue('signed', options => '{"retry_first": "1100 ms"}')});
	my $id = push_to(q{'signed', options => '{"headers": {"receiver": "flaky?fails=1"}}'});
	until_state($node, $id, 'completed', 'a job is delivered at its second attempt');
	my @requests = $receiver->requests(id => $id);
	is(@requests, 2, 'with the same webhook-id');
	is_deeply([ map { $_->{verified} } @requests ], [ [0], [0] ], 'both attempts verify');
	cmp_ok($requests[1]{headers}{'webhook-timestamp'}, '>', $requests[0]{headers}{'webhook-timestamp'},
		'the second has a timestamp of its own');
	isnt($requests[1]{headers}{'webhook-signature'}, $requests[0]{headers}{'webhook-signature'}, 'and a signature of its own');
	sql(q{SELECT jobq.alter_queue('signed', options => '{"retry_first": "50 ms"}')});
}
{
	hook($node, 'other', $receiver->url('/ok'));
	$receiver->verify_with((secrets_of('other'))[0]);
	delivered(q{push('signed', options => '{"endpoint": "other"}')}, 'the secret is that of the endpoint a job names');
}
{
	# What somebody adds must not stand in the place of what is signed.
	$receiver->verify_with($first);
	for my $header (qw(webhook-id webhook-timestamp webhook-signature))
	{
		my ($status, $id, $error) = $node->psql('postgres',
			qq{SELECT jobq.push('signed', options => '{"headers": {"$header": "v1,0000"}}')});
		if ($status == 0)
		{
			until_state($node, $id, 'completed', "a header $header of the job does not replace jobq's own");
		}
		else { like($error, qr/\Q$header\E/, "a header $header of the job is refused at push") }
	}
}

# Rotation

sub rotate
{
	my ($overlap) = @_;
	sql("SELECT jobq.rotate_secret('signed', overlap => '$overlap')");
	return secrets_of('signed');
}

{
	my ($second, @older) = rotate('1 h');
	isnt($second, $first, 'a rotation makes a new secret');
	is_deeply(\@older, [$first], 'the old one is still there');
	is(sql(q{
		SELECT expires_at IS NULL, expires_at BETWEEN clock_timestamp() + interval '55 min' AND clock_timestamp() + interval '1 h'
		FROM jobq.secrets('signed')}), "t|\nf|t", 'until the overlap is over');
	$receiver->verify_with($first, $second);
	my $request;
	# The dispatcher hears of it a moment later.
	until_ok(sub {
		my $id = push_to(q{'signed'});
		$receiver->wait_for(sub { $_[0]{in_flight} == 0 && $receiver->requests(id => $id) }, 'a request');
		($request) = $receiver->requests(id => $id);
		return signatures($request) == 2;
	}, 'requests have two signatures during an overlap', 30);
	is_deeply($request->{verified}, [ 0, 1 ], 'and verify with the old secret and with the new one');
	$receiver->verify_with($first);
	delivered(q{push('signed')}, 'a receiver that has only the old one accepts them');
	$receiver->verify_with($second);
	delivered(q{push('signed')}, 'and so does one that has only the new one');

	my ($third) = rotate('1 h');
	is(scalar(secrets_of('signed')), 3, 'another rotation adds another');
	$receiver->verify_with($first, $second, $third);
	my $all = delivered(q{push('signed')}, 'three secrets sign together');
	is_deeply($all->{verified}, [ 0, 1, 2 ], 'and each of them verifies');

	my @left = rotate('0');
	is(@left, 1, 'a rotation without an overlap leaves only the new secret');
	$receiver->verify_with($third, $second, $first, $left[0]);
	my $last = delivered(q{push('signed')}, 'with which requests verify at once');
	is_deeply($last->{verified}, [3], 'and with no other');
	is(scalar(signatures($last)), 1, 'there is one signature again');
}
{
	# Over at its time, whether or not anybody looks.
	my ($newest, $old) = rotate('1 s');
	until_is($node, q{SELECT count(*) FROM jobq.secrets('signed')}, 1, 'a secret is gone when its overlap is over');
	$receiver->verify_with($old, $newest);
	my $request = delivered(q{push('signed')}, 'then requests verify');
	is_deeply($request->{verified}, [1], 'with the new one only');
}
{
	my ($only, $old) = rotate('1 h');
	$receiver->verify_with($only);
	$node->restart;
	dispatcher($node);
	delivered(q{push('signed')}, 'secrets survive a restart of the server');
	is_deeply([ secrets_of('signed') ], [ $only, $old ], 'all of them');
}

# Unsigned

$receiver->verify_with;
hook($node, 'unsigned', $receiver->url('/ok'), endpoint => { signed => JSON::PP::false });
{
	my $request = delivered(q{push('unsigned')}, 'an endpoint need not be signed');
	ok(!exists $request->{headers}{'webhook-signature'}, 'then there is no signature');
	is($request->{headers}{'webhook-id'}, $request->{id}, 'but the webhook-id');
	sql(q{SELECT jobq.alter_endpoint('unsigned', options => '{"signed": true}')});
	$receiver->verify_with((secrets_of('unsigned'))[0]);
	delivered(q{push('unsigned')}, 'it is signed as soon as it says so');
}

# Who sees a secret

{
	sql(q{CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA jobq TO app; GRANT EXECUTE ON FUNCTION jobq.push TO app;
		GRANT SELECT ON jobq.jobs, jobq.attempts, jobq.stats TO app; GRANT EXECUTE ON FUNCTION jobq.status TO app});
	for my $query (q{SELECT * FROM jobq.secrets('signed')}, q{SELECT jobq.rotate_secret('signed')})
	{
		my ($status, $out, $error) = $node->psql('postgres', "SET ROLE app; $query");
		like($error, qr/permission denied/, "$query is not for those who push");
	}
	is($node->psql('postgres', q{SET ROLE app; SELECT jobq.push('signed', '{"by": "app"}')}), 0,
		'who may push needs no right to the secret');
}
{
	# Failures have texts: of an attempt, of the dispatcher, of those who ask for nonsense.
	sql(q{SELECT jobq.alter_queue('signed', max_attempts => 1)});
	my @ids = map { push_to(qq{'signed', options => '{"headers": {"receiver": "$_"}}'}) } qw(fail reset status/404);
	until_is($node, 'SELECT count(*) FROM jobq.jobs WHERE id IN (' . join(', ', map { "'$_'" } @ids) . ") AND state = 'dead'",
		3, 'deliveries fail in several ways');
	for my $query (
		q{SELECT * FROM jobq.secrets('nowhere')}, q{SELECT jobq.rotate_secret('nowhere')},
		q{SELECT jobq.rotate_secret('signed', overlap => '-1 h')},
		q{SELECT jobq.create_endpoint('signed', 'http://127.0.0.1:1/')})
	{
		my ($status, $out, $error) = $node->psql('postgres', $query);
		isnt($status, 0, "$query is an error");
	}
}
secrets_of($_) for qw(signed neighbour other unsigned);
cmp_ok(keys %secrets, '>=', 8, 'there were several secrets');

# The secret, its base64 and its bytes in hex.
my $pattern = join '|', map { my $text = s/^whsec_//r; (quotemeta $text, unpack 'H*', decode_base64($text)) } keys %secrets;
{
	# In the session of somebody who reads it, and of the dispatcher.
	my $session = session($node);
	$session->query_safe(q{SELECT count(*) FROM jobq.secrets('signed')});
	for my $source ('pg_stat_activity', 'jobq.jobs', 'jobq.attempts', 'jobq.stats', 'jobq.status()', 'pg_settings')
	{
		my $text = sql("SELECT s::text FROM $source AS s");
		isnt($text, '', "$source has rows");
		unlike($text, qr/$pattern/, "a secret does not stand in $source");
	}
	close_session($session);
}
{
	# The test has asked by statements that do not name one, so that none is there by the test's own doing.
	my $log = slurp_file($node->logfile);
	like($log, qr/rotate_secret/, 'statements are logged');
	like($log, qr/DEBUG:/, 'and so is what the server says to developers');
	# Not unlike(), which would print the log.
	ok($log !~ /$pattern/, 'a secret does not stand in the log');
	unlike(join("\n", map { join "\n", values %{ $_->{headers} || {} } } $receiver->requests), qr/$pattern/,
		'nor in any request');
}

$node->stop;
done_testing();
