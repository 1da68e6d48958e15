# The chapter "Receiving" of README.md is run: its receivers against requests that the test signs, right ones
# and wrong ones, and then all of it with deliveries.
use strict;
use warnings;
use Digest::SHA 'hmac_sha256';
use FindBin;
use lib "$FindBin::RealBin/../lib";
use HTTP::Tiny;
use IPC::Run;
use JobqTest;
use MIME::Base64;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;
use Time::HiRes qw(time usleep);

my $dir = PostgreSQL::Test::Utils::tempdir();
my $http = HTTP::Tiny->new(timeout => 30, keep_alive => 0, proxy => undef, http_proxy => undef);
my ($chapter) = slurp_file("$FindBin::RealBin/../../README.md") =~ /^## Receiving\n(.*?)^## /ms
  or die 'README.md has no chapter on receiving';
my (%program, @sql);
while ($chapter =~ /^```(\w+)\n(.*?)^```/msg)
{
	if ($1 eq 'sql') { push @sql, $2 }
	else
	{
		die "two receivers in $1" if $program{$1};
		$program{$1} = $2;
	}
}

# The receivers

# How each is started.
my %command = (
	js => [ 'node', "$dir/receiver.js" ],
	python => [ '/usr/bin/python3', "$dir/receiver.py" ],
	go => ["$dir/receiver"]);
is_deeply([ sort keys %program ], [ sort keys %command ], 'there is a receiver in each of three languages');
append_to_file("$dir/receiver.js", $program{js});
append_to_file("$dir/receiver.py", $program{python});
append_to_file("$dir/receiver.go", $program{go});
{
	local @ENV{qw(GOCACHE GO111MODULE)} = ("$dir/go", 'off');
	my $out = '';
	IPC::Run::run([ 'go', 'build', '-o', "$dir/receiver", "$dir/receiver.go" ], '<', \undef, '>', \$out, '2>&1')
	  or die "the receiver in Go does not build: $out";
}

# A receiver that is up: port, out (what it has printed so far), handle.
sub receiver
{
	my ($language, $secret) = @_;
	my $self = { port => PostgreSQL::Test::Cluster::get_free_port(), out => '' };
	local @ENV{qw(SECRET PORT NODE_PATH)} = ($secret, $self->{port}, "$FindBin::RealBin/../node_modules");
	$self->{handle} = IPC::Run::start($command{$language}, '<', \undef, '>', \$self->{out}, '2>', \$self->{err});
	my $until = time + $timeout;
	# 599 is HTTP::Tiny's own for: no answer.
	while ($http->post("http://127.0.0.1:$self->{port}/")->{status} == 599)
	{
		die "the receiver in $language does not start: $self->{err}"
		  if time > $until || !$self->{handle}->pumpable;
		usleep(20_000);
		$self->{handle}->pump_nb;
	}
	return $self;
}

sub printed
{
	my ($receiver) = @_;
	$receiver->{handle}->pump_nb;
	return $receiver->{out};
}

sub new_secret { return 'whsec_' . encode_base64(join('', map { chr int rand 256 } 1 .. 32), '') }

sub signature
{
	my ($secret, $id, $time, $body) = @_;
	my $key = decode_base64($secret =~ s/^whsec_//r);
	return 'v1,' . encode_base64(hmac_sha256("$id.$time.$body", $key), '');
}

my $secret = new_secret();
my $other = new_secret();
my $count = 0;

# A request that is right but for what the arguments change: body, id, time, signature, and without => [ ... ].
# Returns the status, and what became of the body: whether it was taken for an order.
sub request
{
	my ($receiver, %change) = @_;
	my $signed = '{"order": ' . ++$count . '}';
	my ($id, $now) = ("message-$count", int time);
	my %headers = (
		'content-type' => 'application/json',
		'webhook-id' => $change{id} // $id,
		'webhook-timestamp' => $change{time} // $now,
		'webhook-signature' => $change{signature} // signature($secret, $id, $change{time} // $now, $change{signed} // $signed));
	delete $headers{$_} for @{ $change{without} || [] };
	my $response = $http->post("http://127.0.0.1:$receiver->{port}/hook",
		{ headers => \%headers, content => $change{body} // $change{signed} // $signed });
	return $response->{status};
}

for my $language (sort keys %command)
{
	my $receiver = receiver($language, $secret);
	my $now = int time;
	my $seen = sub { return qr/order.*order\W+$count\b/ };
	my $taken = sub {
		my ($name, %change) = @_;
		is(request($receiver, %change), 200, "$language: $name is accepted");
	};
	my $refused = sub {
		my ($name, %change) = @_;
		is(request($receiver, %change), 401, "$language: $name is refused");
	};
	$taken->('a signed request');
	until_ok(sub { printed($receiver) =~ $seen->() }, "$language: and its body is taken for an order");
	$taken->('non-ASCII text', signed => qq({"order": "\xc3\xbc\xe2\x82\xac"}));

	my $body = '{"order": 0}';
	my $of = sub { my ($secret, $id) = @_; return signature($secret, $id // 'm', $now, $body) };
	my %fixed = (signed => $body, id => 'm', time => $now);
	my $right = $of->($secret);
	$taken->('a signature among others', %fixed, signature => join ' ', $of->($other), $right);
	$taken->('a signature before others', %fixed, signature => join ' ', $right, $of->($other));
	$taken->('a signature beside one of another version', %fixed, signature => "v1a,AAAA $right");
	$taken->('a timestamp a minute old', time => $now - 60);
	$taken->('a timestamp a minute early', time => $now + 60);

	$refused->('a signature by another secret', %fixed, signature => $of->($other));
	$refused->('a list of wrong signatures', %fixed, signature => join ' ', $of->($other), $of->($secret, 'n'));
	$refused->('a signature of another version', %fixed, signature => $right =~ s/^v1/v2/r);
	$refused->('a signature without its version', %fixed, signature => $right =~ s/^v1,//r);
	$refused->('part of a signature', %fixed, signature => substr $right, 0, 20);
	$refused->('a signature and more', %fixed, signature => "${right}A");
	$refused->('an empty signature', %fixed, signature => '');
	$refused->('another body than the signed one', body => '{"order": "stolen"}');
	$refused->('the body with a space more', %fixed, body => "$body ");
	$refused->('another id than the signed one', id => 'another');
	$refused->('another timestamp than the signed one', %fixed, time => $now - 1, signature => $right);
	$refused->('an old request', time => $now - 600);
	$refused->('a request of the future', time => $now + 600);
	$refused->('a timestamp that is no number', time => 'yesterday');
	$refused->('a timestamp beyond all numbers', time => '9' x 5000);
	$refused->("a request without $_", without => [$_]) for qw(webhook-id webhook-timestamp webhook-signature);

	$taken->('a signed request after all those');
	until_ok(sub { printed($receiver) =~ $seen->() }, "$language: and its body is taken for an order");
	unlike(printed($receiver), qr/stolen/, "$language: no refused one is");

	# Bodies that are not JSON, for the two that do not parse them.
	if ($language ne 'js')
	{
		$taken->('a body of bytes', signed => "\x00\xff\x0d\x0a\xfe");
		$taken->('an empty body', signed => '');
		$refused->('a body of bytes with one changed', signed => "\x00\xff", body => "\x00\xfe");
	}
	$receiver->{handle}->kill_kill;
}

# Deliveries

my $node = jobq_node('receiving');

sub sql { return $node->safe_psql('postgres', $_[0]) }

# The SQL of the chapter that has a text in it, with its parameters.
sub shown
{
	my ($text, @parameters) = @_;
	my @found = grep { index($_, $text) >= 0 } @sql;
	is(@found, 1, "README shows $text");
	return $found[0] =~ s/\$(\d)/'$parameters[$1 - 1]'/gr;
}

hook($node, 'shop', 'http://127.0.0.1:9/', queue => { retry_first => '50 ms', retry_jitter => 0 });
$node->safe_psql('postgres', q{SELECT jobq.create_queue('orders', endpoint => 'shop')});
my $theirs = sql(shown('jobq.secrets'));
like($theirs, qr{^whsec_[A-Za-z0-9+/]{32,}=*$}, 'a secret is there without being given');
my @running;
for my $language (sort keys %command)
{
	my $receiver = receiver($language, $theirs);
	sql(qq{SELECT jobq.alter_endpoint('shop', url => 'http://127.0.0.1:$receiver->{port}/')});
	my $order = "delivered to $language";
	my $id = push_job($node, qq{'orders', '{"order": "$order"}'});
	until_state($node, $id, 'completed', "$language: a delivery is accepted");
	until_ok(sub { index(printed($receiver), $order) >= 0 }, "$language: and read");
	is(story($node, $id), '1 completed', "$language: at once");
	push @running, [ $language, $receiver ];
}
{
	sql(shown('jobq.rotate_secret'));
	isnt(sql(shown('jobq.secrets')), $theirs, 'after a rotation the newest secret is another');
	for (@running)
	{
		my ($language, $receiver) = @$_;
		sql(qq{SELECT jobq.alter_endpoint('shop', url => 'http://127.0.0.1:$receiver->{port}/')});
		my $id = push_job($node, q{'orders', '{"order": "after the rotation"}'});
		until_state($node, $id, 'completed', "$language: a delivery during a rotation is accepted by the old secret");
		is(story($node, $id), '1 completed', "$language: at once");
		$receiver->{handle}->kill_kill;
	}
}

my $receiver = Receiver->start;
sql(sprintf q{SELECT jobq.alter_endpoint('shop', url => '%s')}, $receiver->url('/ok'));

# Once is not promised

sql(shown('CREATE TABLE'));
{
	my @ids = map { push_job($node, q{'orders'}) } 1, 2;
	for my $id ($ids[0], $ids[0], $ids[1])
	{
		sql(shown('ON CONFLICT DO NOTHING', $id, 42));
	}
	is(sql('SELECT count(*) FROM shipments WHERE "order" = 42'), 2, 'what comes twice is done once');
}

# Later

{
	my $settings = shown('accept_later');
	$node->safe_psql('postgres', $settings);
	$receiver->reset;
	my $to_do = push_job($node, q{'orders', options => '{"headers": {"receiver": "status/202"}}'});
	$receiver->wait_for(sub { $_[0]{answered} == 1 }, 'the answer 202');
	until_idle($node, 'the answer 202 is taken');
	is(state_of($node, $to_do), 'running', 'a job answered with 202 is not done');
	my ($request) = $receiver->requests(id => $to_do);
	my $finish = shown('jobq.complete', $request->{headers}{'webhook-id'}, $request->{headers}{'jobq-attempt'});
	$node->safe_psql('postgres', $finish);
	is(sql(qq{SELECT state, result FROM jobq.jobs WHERE id = '$to_do'}), 'completed|{"shipped": true}',
		'it is done when jobq.complete says so');
	is($receiver->stats->{requests}, 1, 'and was delivered once');
	my ($status, undef, $error) = $node->psql('postgres', $finish);
	isnt($status, 0, 'its token is used up');
}

# What an answer means

# Pushes a job that is answered like that; returns it when an attempt is over.
sub answered
{
	my ($how, $attempts) = @_;
	my $id = push_job($node, sprintf q{'shop', options => '{"max_attempts": %d, "headers": {"receiver": "%s"}}'},
		$attempts // 1, $how);
	until_is($node, qq{SELECT count(*) > 0 FROM jobq.attempts WHERE id = '$id' AND outcome IS NOT NULL}, 't',
		"$how is taken");
	return $id;
}

until_state($node, answered('status/204'), 'completed', '2xx completes');
{
	my $id = answered('json?body={\\"a\\": 1}');
	is(sql(qq{SELECT result FROM jobq.jobs WHERE id = '$id'}), '{"a": 1}', 'a JSON body is the result');
}
for my $status (500, 404)
{
	my $id = answered("status/$status?header=jobq-no-retry:true", 5);
	until_state($node, $id, 'dead', "jobq-no-retry ends a job with $status");
	is(story($node, $id), "1 http_$status", 'after its first attempt');
}
{
	my $id = answered('status/302?location=/elsewhere');
	is(story($node, $id), '1 http_302', 'a redirect fails');
	is(scalar($receiver->requests(path => '/elsewhere')), 0, 'it is not followed');
}
{
	my $id = answered('flaky?fails=1&status=404', 2);
	until_state($node, $id, 'completed', 'another 4xx is tried again');
	sql(q{SELECT jobq.alter_endpoint('shop', options => '{"final_statuses": ["4xx"]}')});
	$id = answered('status/404', 2);
	is(state_of($node, $id), 'dead', 'but for what final_statuses says');
}
{
	my $id = answered('flaky?fails=1&status=429&header=retry-after:1', 2);
	until_state($node, $id, 'completed', '429 is tried again');
	my @requests = $receiver->requests(id => $id);
	cmp_ok($requests[1]{arrived} - $requests[0]{ended}, '>=', 900, 'not before Retry-After is over');
}
{
	my $gone = answered('status/410');
	until_is($node, q{SELECT enabled FROM jobq.endpoint WHERE name = 'shop'}, 'f', '410 disables the endpoint');
	my $id = push_job($node, q{'shop'});
	sql(q{NOTIFY jobq});
	until_idle($node, 'the dispatcher has looked');
	is(state_of($node, $id), 'queued', 'whose jobs wait');
	sql(qq{SELECT jobq.cancel(id) FROM jobq.jobs WHERE id = '$gone' AND state = 'queued'});
	sql(q{SELECT jobq.alter_endpoint('shop', options => '{"enabled": true}')});
	until_state($node, $id, 'completed', 'until it is enabled');
}

done_testing();
