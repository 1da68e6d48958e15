# What is sent: headers by whom they come from, traces, CloudEvents, compressed bodies; and what never is.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use JSON::PP;
use MIME::Base64;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;

my $node = jobq_node('requests', conf => [ 'jobq.scan_interval = 1h', 'jobq.max_payload = 100kB' ]);
my $receiver = Receiver->start;

sub sql { return $node->safe_psql('postgres', $_[0]) }
sub hook_to { my ($name, %endpoint) = @_; return hook($node, $name, $receiver->url('/ok'), endpoint => \%endpoint) }

# Runs SQL that says the ids of jobs last, each of which must have one request; returns these.
sub sent
{
	my ($sql, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @ids = grep { /^[0-9a-f]{8}-/ } split /\n/, sql($sql);
	my $in = join ', ', map { "'$_'" } @ids;
	until_is($node, "SELECT count(*) FROM jobq.jobs WHERE id IN ($in) AND state = 'completed' AND attempt = 1",
		scalar(@ids), $name);
	my @requests = map { my ($request) = $receiver->requests(id => $_); $request } @ids;
	return wantarray ? @requests : $requests[0];
}

sub refused
{
	my ($sql, $error, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($status, $out, $said) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql", on_error_stop => 1);
	return like($said, $error, $name);
}

# Traces

my $trace = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
my $other = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00';

sub trace_of { my ($request) = @_; return $request->{headers}{traceparent} // '' }

hook_to('traced');
hook_to('traced_by_endpoint', headers => { traceparent => $other });
{
	is(trace_of(scalar sent(q{SELECT jobq.push('traced')}, 'a push without a trace')), '', 'has no traceparent');
	is(trace_of(scalar sent("SET jobq.traceparent = '$trace'; SELECT jobq.push('traced')", 'a push with one')), $trace,
		'is sent with it');
	my @many = sent("SET jobq.traceparent = '$trace'; SELECT jobq.push_many('traced', '{1, 2}')", 'push_many');
	is(join(' ', map { trace_of($_) } @many), "$trace $trace", 'has it for each job');
	is(trace_of(scalar sent("SET jobq.traceparent = '$trace'; SELECT jobq.push_bytes('traced', 'x')", 'push_bytes')), $trace,
		'has it');
	is(trace_of(scalar sent(qq{BEGIN; SET LOCAL jobq.traceparent = '$trace'; SELECT jobq.push('traced'); COMMIT},
		'a push of a transaction with a trace')), $trace, 'is sent with that');
	is(trace_of(scalar sent(qq{BEGIN; SET LOCAL jobq.traceparent = '$trace'; COMMIT; SELECT jobq.push('traced')},
		'the next one')), '', 'is not');
	is(trace_of(scalar sent("SET jobq.traceparent = '$trace'; SET jobq.traceparent = ''; SELECT jobq.push('traced')",
		'an empty trace')), '', 'is none');
	is(trace_of(scalar sent("SET jobq.traceparent = '$trace'; SELECT jobq.push('traced_by_endpoint')",
		"a push to an endpoint that has one")), $trace, "the push's wins");

	for my $name ('traceparent', 'Traceparent', 'TRACEPARENT')
	{
		my ($request, @more) = sent(qq{SET jobq.traceparent = '$trace';
			SELECT jobq.push('traced', options => '{"headers": {"$name": "$other", "x-more": "1"}}')}, "a push with a header $name");
		is(trace_of($request), $other, 'it wins');
		is($request->{headers}{'x-more'}, '1', 'beside others');
	}
	my $request = sent(qq{SET jobq.traceparent = '$trace';
		SELECT jobq.push('traced', options => '{"headers": {"tracestate": "a=b"}}')}, 'a push with other headers');
	is(trace_of($request), $trace, 'has the trace');
	is($request->{headers}{tracestate}, 'a=b', 'and these');
	for my $more ('-more=1', '-","x-evil":"1', '-\\"')
	{
		my $later = '01-' . substr($trace, 3) . $more;
		$request = sent("SET jobq.traceparent = '$later'; SELECT jobq.push('traced')", "a trace of a later version, with $more");
		is(trace_of($request), $later, 'is passed on as it is');
		ok(!exists $request->{headers}{'x-evil'}, 'and nothing else');
	}
}
{
	sql(q{
		CREATE TABLE by_row (a int);
		CREATE TRIGGER pushed AFTER INSERT ON by_row FOR EACH ROW EXECUTE FUNCTION jobq.push_row('traced', 'by row');
		CREATE TABLE by_statement (a int);
		CREATE TRIGGER pushed AFTER INSERT ON by_statement REFERENCING NEW TABLE AS new FOR EACH STATEMENT
			EXECUTE FUNCTION jobq.push_row('traced', 'by statement', '{"headers": {"x-more": "1"}}');});
	for my $table ('by_row', 'by_statement')
	{
		my @requests = sent(qq{SET jobq.traceparent = '$trace'; INSERT INTO $table VALUES (1), (2);
			SELECT id FROM jobq.jobs WHERE type = translate('$table', '_', ' ')}, "push_row, $table");
		is(join(' ', map { trace_of($_) } @requests), "$trace $trace", 'has the trace for each row');
	}
}
for my $bad ('nonsense', "$trace-", substr($trace, 1), uc $trace, 'ff' . substr($trace, 2), '00-' . '0' x 32 . substr($trace, 35),
	"$trace\\r\\nx-more: 1", "$trace\\n", '01' . substr($trace, 2) . '-a b')
{
	refused("SET jobq.traceparent = E'$bad'", qr/22023.*invalid value for parameter "jobq.traceparent"/, "no trace: $bad");
}

# CloudEvents

hook_to('events', cloudevents_source => '/shop?region=eu');
{
	my $before = sql('SELECT clock_timestamp()');
	my ($request) = sent(q{SELECT jobq.push('events', '{"a": 1}', type => 'order.created')}, 'an event');
	my %headers = %{ $request->{headers} };
	is($headers{'ce-specversion'}, '1.0', 'it is one of CloudEvents 1.0');
	is($headers{'ce-id'}, $request->{id}, "its id is the job's");
	is($headers{'ce-source'}, '/shop?region=eu', "its source the endpoint's");
	is($headers{'ce-type'}, 'order.created', "its type the job's");
	like($headers{'ce-time'}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/, 'its time is in the notation of RFC 3339');
	is(sql(qq{SELECT timestamptz '$headers{'ce-time'}' BETWEEN timestamptz '$before' - interval '2 ms' AND clock_timestamp(),
			timestamptz '$headers{'ce-time'}' = created_at FROM jobq.jobs WHERE id = '$request->{id}'}), 't|t',
		'and that of the push');
	is($headers{'content-type'}, 'application/json', 'what content-type says is the data');
	is($request->{body}, '{"a": 1}', 'which is the body');

	is((sent(q{SELECT jobq.push('events')}, 'an event without a type'))[0]{headers}{'ce-type'}, 'events', 'is of that of its queue');
	is((sent(q{SELECT jobq.push_bytes('events', '\x00', 'image/png', type => 'x')}, 'an event of bytes'))[0]{headers}{'content-type'},
		'image/png', 'has their content type');
	($request) = sent(q{SELECT jobq.push('events', type => 'a "b" 100% ' || U&'gr\00fc\00df \20ac \+01f600' || '~!')}, 'an odd type');
	is($request->{headers}{'ce-type'}, 'a%20%22b%22%20100%25%20gr%C3%BC%C3%9F%20%E2%82%AC%20%F0%9F%98%80~!', 'is percent-encoded');
	is($request->{type}, "a \"b\" 100% gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80~!", 'but not in jobq-type');
	($request) = sent(q{SELECT jobq.push('events', type => 'x', options => '{"headers": {"ce-subject": "42", "CE-Type": "mine"}}')},
		'an event with headers of its own');
	is($request->{headers}{'ce-subject'}, '42', 'they are sent');
	is($request->{headers}{'ce-type'}, 'mine', "and take the place of jobq's");
	hook_to('events_other', cloudevents_source => '/shop', headers => { 'ce-source' => '/other' });
	is((sent(q{SELECT jobq.push('events_other')}, 'an event for an endpoint with such a header'))[0]{headers}{'ce-source'}, '/other',
		'is sent with that');

	sql(q{SELECT jobq.alter_queue('events', options => '{"retry_first": "20 ms"}')});
	my $id = sql(q{SELECT jobq.push('events', options => '{"headers": {"receiver": "flaky?fails=1"}}')});
	until_state($node, $id, 'completed', 'an event that is sent twice');
	my @both = map { my $h = $_->{headers}; join ' ', map { $h->{"ce-$_"} } qw(id time) } $receiver->requests(id => $id);
	is(scalar(@both), 2, 'indeed');
	is($both[0], $both[1], 'is the same event');
	ok(!grep({ /^ce-/ } keys %{ (sent(q{SELECT jobq.push('traced')}, 'without a source'))[0]{headers} }), 'there are no such headers');
}

# gzip

hook_to('gzip', gzip => JSON::PP::true);
hook_to('no_gzip');
{
	# A JSON text of so many bytes.
	my $text = sub { my ($bytes) = @_; return sprintf q{jsonb_build_object('a', repeat('x', %d))}, $bytes - length('{"a": ""}') };
	my %as = map { $_ => (sent(sprintf(q{SELECT jobq.push('gzip', %s)}, $text->($_)), "a payload of $_ bytes"))[0] } 1023, 1024, 90_000;
	ok(!exists $as{1023}{headers}{'content-encoding'}, 'below 1 kB a payload is sent as it is');
	is($as{1023}{bytes}, 1023, 'with all of its bytes');
	for my $bytes (1024, 90_000)
	{
		is($as{$bytes}{headers}{'content-encoding'}, 'gzip', "a payload of $bytes bytes is sent compressed");
		cmp_ok($as{$bytes}{bytes}, '<', $bytes / 2, 'in fewer bytes');
		is($as{$bytes}{body}, '{"a": "' . 'x' x ($bytes - 9) . '"}', 'and arrives whole');
		is($as{$bytes}{headers}{'content-type'}, 'application/json', 'its content type is that of what is in it');
	}
	my ($request) = sent(sprintf(q{SELECT jobq.push('no_gzip', %s)}, $text->(90_000)), 'a payload for an endpoint that does not say so');
	ok(!exists $request->{headers}{'content-encoding'} && $request->{bytes} == 90_000, 'is sent as it is');
	my $bytes = join '', map { chr(255 - $_ % 7) . "\0" } 1 .. 1000;
	($request) = sent(sprintf(q{SELECT jobq.push_bytes('gzip', '\x%s', 'application/x-odd')}, unpack 'H*', $bytes), 'a body of bytes');
	is($request->{headers}{'content-encoding'}, 'gzip', 'is compressed too');
	is($request->{base64}, encode_base64($bytes, ''), 'and arrives as it was');
	is($request->{headers}{'content-type'}, 'application/x-odd', 'with its content type');
	($request) = sent(q{SELECT jobq.push_bytes('gzip', (SELECT string_agg(sha256(n::text::bytea), '') FROM generate_series(1, 100) AS n))},
		'a body that cannot be compressed');
	ok(!exists $request->{headers}{'content-encoding'} && $request->{bytes} == 3200, 'is sent as it is');
	($request) = sent(q{SELECT jobq.push_bytes('gzip', convert_to(repeat('x', 5000), 'UTF8'), options => '{"headers": {"Content-Encoding": "x-own"}}')},
		'a body that is encoded already');
	is("$request->{headers}{'content-encoding'} $request->{bytes}", 'x-own 5000', 'is not encoded again');
}

# Bytes

hook_to('bytes', headers => { 'content-type' => 'text/x-endpoint' });
{
	my $all = join '', map { chr } 0 .. 255;
	my ($request) = sent(sprintf(q{SELECT jobq.push_bytes('traced', '\x%s', 'application/x-all; v="1"')}, unpack 'H*', $all), 'all bytes');
	is($request->{base64}, encode_base64($all, ''), 'arrive as they are');
	is($request->{headers}{'content-type'}, 'application/x-all; v="1"', 'with their content type');
	($request) = sent(q{SELECT jobq.push_bytes('traced', 'x')}, 'bytes without one');
	is($request->{headers}{'content-type'}, 'application/octet-stream', 'are an octet stream');
	($request) = sent(q{SELECT jobq.push_bytes('bytes', 'x', 'text/x-push')}, 'bytes for an endpoint with a content type');
	is($request->{headers}{'content-type'}, 'text/x-endpoint', 'are sent with that');
	($request) = sent(q{SELECT jobq.push_bytes('bytes', 'x', 'text/x-push', options => '{"headers": {"Content-Type": "text/x-job"}}')},
		'bytes with a header of their own');
	is($request->{headers}{'content-type'}, 'text/x-job', 'which wins');
}

# Headers

hook_to('headers', headers => { 'X-Endpoint' => 'e', 'X-Both' => 'e', 'X-Empty' => '', 'User-Agent' => 'mine/1', 'X-Text' => "gr\x{fc}n\ta" });
{
	my ($request) = sent(q{SELECT jobq.push('headers', options => '{"headers": {"x-both": "j", "x-job": "a, b; c=\"d\""}}')},
		'headers of an endpoint and of a job');
	my %headers = %{ $request->{headers} };
	is($headers{'x-endpoint'}, 'e', "the endpoint's are sent");
	is($headers{'x-both'}, 'j', "the job's take the place of the same ones");
	is($headers{'x-job'}, 'a, b; c="d"', 'and are sent as they are');
	is($headers{'x-empty'}, '', 'a value may be empty');
	is($headers{'user-agent'}, 'mine/1', 'the user agent may be set');
	is($headers{'x-text'}, "gr\xc3\xbcn\ta", 'a value may be any text, which is sent in UTF-8');
	is($headers{'accept'} // '', '*/*', 'accept is left to the HTTP client');
	sql(q{SELECT jobq.alter_endpoint('headers', options => '{"headers": {"x-new": "n"}}')});
	($request) = sent(q{SELECT jobq.push('headers')}, 'other headers of the endpoint');
	is(($request->{headers}{'x-new'} // '') . ($request->{headers}{'x-endpoint'} // ''), 'n', 'replace the old ones');
	like($request->{headers}{'user-agent'}, qr{^jobq/}, "without one the user agent is jobq's");
}

# What would end a line

sql(q{
	SELECT jobq.create_queue('trigger', endpoint => 'traced');
	CREATE TABLE for_type (type text);
	CREATE TRIGGER pushed AFTER INSERT ON for_type FOR EACH ROW
		EXECUTE FUNCTION jobq.push_row('trigger', 'x', '{"type_column": "type"}')});
for my $case ([ '\r', '\u000d' ], [ '\n', '\u000a' ], [ '\r\nx-evil: 1', '\r\nx-evil: 1' ], [ '\x7f', '\u007f' ], [ '\x01', '\u0001' ])
{
	my ($text, $json) = @$case;
	my $error = qr/ERROR:  22023:.*(control characters|line breaks)/;
	my %by = (
		'the value of a header at push' => qq{SELECT jobq.push('traced', options => '{"headers": {"x-a": "b$json"}}')},
		'the value of a header at push_many' => qq{SELECT jobq.push_many('traced', '{1}', options => '{"headers": {"x-a": "b$json"}}')},
		'the value of a header at push_bytes' => qq{SELECT jobq.push_bytes('traced', 'x', options => '{"headers": {"x-a": "b$json"}}')},
		'traceparent at push' => qq{SELECT jobq.push('traced', options => '{"headers": {"traceparent": "$trace$json"}}')},
		'a content type' => qq{SELECT jobq.push_bytes('traced', 'x', E'text/plain$text')},
		'a type' => qq{SELECT jobq.push('traced', type => E'a$text')},
		'a type at push_many' => qq{SELECT jobq.push_many('traced', '{1, 2}', types => ARRAY['a', E'a$text'])},
		'a type at push_bytes' => qq{SELECT jobq.push_bytes('traced', 'x', type => E'a$text')},
		'a type of a row' => qq{INSERT INTO for_type VALUES (E'a$text')},
		'the value of a header of an endpoint' => qq{SELECT jobq.create_endpoint('bad', 'http://127.0.0.1/', options => '{"headers": {"x-a": "b$json"}}')},
		'the same in its row' => qq{UPDATE jobq.endpoint SET headers = '{"x-a": "b$json"}' WHERE name = 'traced'},
		'the name of a queue' => qq{SELECT jobq.create_queue(E'a$text')},
		'the same in its row' => qq{UPDATE jobq.queue SET name = E'a$text' WHERE name = 'trigger'},
	);
	refused($by{$_}, $error, "$_ is refused with $text") for sort keys %by;
	# These have characters of their own.
	refused(qq{SELECT jobq.push('traced', options => '{"headers": {"x-a$json": "b"}}')}, qr/22023: header name must have only/,
		"so is the name of a header at push");
	refused(qq{UPDATE jobq.endpoint SET headers = '{"x-a$json": "b"}' WHERE name = 'traced'}, qr/22023: header name must have only/,
		'of an endpoint');
	refused(qq{SELECT jobq.alter_endpoint('events', options => '{"cloudevents_source": "/a$json"}')}, qr/22023: cloudevents_source/,
		'a source of events');
	refused(qq{UPDATE jobq.endpoint SET cloudevents_source = E'/a$text' WHERE name = 'events'}, qr/22023: cloudevents_source/,
		'also in its row');
	refused(qq{SELECT jobq.create_endpoint('bad', E'http://127.0.0.1/$text')}, qr/22023:.*URL/, 'a URL');
	refused(qq{UPDATE jobq.endpoint SET url = E'http://127.0.0.1/$text' WHERE name = 'traced'}, qr/22023:.*URL/, 'also in its row');
	refused(qq{UPDATE jobq.endpoint SET method = E'POST$text' WHERE name = 'traced'}, qr/22023: method/, 'a method');
	refused(qq{SET jobq.traceparent = E'$trace$text'}, qr/22023:.*jobq.traceparent/, 'and a trace');
}
# A text of PostgreSQL has no zeros; JSON may name one.
for my $query (
	q{SELECT jobq.push('traced', options => '{"headers": {"x-a": "b\u0000"}}')},
	q{SELECT jobq.alter_endpoint('traced', options => '{"headers": {"x-a": "b\u0000"}}')},
	q{SELECT jobq.alter_endpoint('events', options => '{"cloudevents_source": "/a\u0000"}')},
	q{SELECT jobq.push('traced', type => E'a\\000')},
	q{SELECT jobq.push_bytes('traced', 'x', E'a/b\\000')},
	qq{SET jobq.traceparent = E'$trace\\\\000'})
{
	refused($query, qr/ERROR:  22/, "a zero is refused: $query");
}
{
	# What somebody writes into the table of jobs passes no check; nothing of it leaves.
	my $before = $receiver->stats->{requests};
	my @ids;
	for my $set (q{type = E'a\r\nx-evil: 1'}, q{content_type = E'a\r\nx-evil: 1'}, q{headers = '{"x-a": "b\r\nx-evil: 1"}'},
		q{headers = '{"x-a: 1\r\nx-evil": "b"}'})
	{
		my $id = push_job($node, q{'traced', delay => '1 h', options => '{"max_attempts": 1}'});
		sql("UPDATE jobq.job SET $set, run_at = clock_timestamp() WHERE id = '$id'; NOTIFY jobq");
		push @ids, $id;
	}
	sql(q{SELECT jobq.push('no_gzip')});
	my $in = join ', ', map { "'$_'" } @ids;
	until_is($node, "SELECT count(*) FROM jobq.jobs WHERE id IN ($in) AND state = 'dead'", scalar(@ids),
		'jobs with line ends in their rows fail');
	is(sql("SELECT DISTINCT outcome, status_code IS NULL FROM jobq.attempts WHERE id IN ($in)"), 'refused_request|t', 'unsent');
	is(scalar(grep { exists $_->{headers}{'x-evil'} } $receiver->requests), 0, 'no request has what they would have added');
}

# Limits

{
	is(sql(q{SELECT setting, context FROM pg_settings WHERE name = 'jobq.max_payload'}), '102400|superuser',
		'the limit on payloads is not for everybody to change');
	my $fits = sql(q{SELECT jobq.push_bytes('traced', convert_to(repeat('x', 102400), 'UTF8'))});
	until_state($node, $fits, 'completed', 'a body as large as the limit is delivered');
	is((($receiver->requests(id => $fits))[0] // {})->{bytes}, 102400, 'whole');
	my $json = sql(q{SELECT jobq.push('traced', jsonb_build_object('a', repeat('x', 102000)))});
	until_state($node, $json, 'completed', 'and so is a JSON payload');
	my $error = qr/ERROR:  54000: .*over the limit of 102400 bytes/;
	my %over = (
		'push' => q{SELECT jobq.push('traced', jsonb_build_object('a', repeat('x', 102400)))},
		'push_many' => q{SELECT jobq.push_many('traced', ARRAY['1', jsonb_build_object('a', repeat('x', 102400))])},
		'push_bytes' => q{SELECT jobq.push_bytes('traced', convert_to(repeat('x', 102401), 'UTF8'))},
		'push_row' => q{INSERT INTO for_rows VALUES (repeat('x', 102400))},
		# Small in jsonb, long as text.
		'push, with control characters' => q{SELECT jobq.push('traced', jsonb_build_object('a', repeat(E'\x01', 20000)))},
		'push, with large numbers' => q{SELECT jobq.push('traced', '[1e60000, 1e60000]')},
	);
	sql(q{CREATE TABLE for_rows (a text);
		CREATE TRIGGER pushed AFTER INSERT ON for_rows FOR EACH ROW EXECUTE FUNCTION jobq.push_row('traced')});
	refused($over{$_}, $error, "$_ refuses a payload over it") for sort keys %over;
	is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'traced' AND state <> 'completed' AND state <> 'dead'}), 0, 'and leaves no job');
	my $more = sql(q{SET jobq.max_payload = '200kB'; SELECT jobq.push_bytes('traced', convert_to(repeat('x', 150000), 'UTF8'))});
	until_state($node, $more =~ s/.*\n//r, 'completed', 'a higher limit lets more through');
}

$node->stop;
done_testing();
