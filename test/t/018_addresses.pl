# jobq.allow_networks: which addresses deliveries may go to, whatever they are called and however one comes to them.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Receiver;
use Test::More;

my $node = jobq_node('addresses', conf => [ 'jobq.scan_interval = 1h' ]);
$node->append_conf('postgresql.conf', q(jobq.allow_networks = ''));
$node->restart;
dispatcher($node);
my $receiver = Receiver->start;
my $port = $receiver->port;
my $six = eval { Receiver->start(host => '::1') };

sub sql { return $node->safe_psql('postgres', $_[0]) }
sub of_job { my ($id, $columns) = @_; return sql(qq{SELECT $columns FROM jobq.attempts WHERE id = '$id' AND outcome IS NOT NULL ORDER BY attempt DESC LIMIT 1}) }

my $hooks = 0;

# An endpoint and a queue whose jobs have one attempt; returns their name.
sub hook_to
{
	my ($url, %endpoint) = @_;
	my $name = 'hook' . ++$hooks;
	hook($node, $name, $url, endpoint => \%endpoint, queue => { max_attempts => 1 });
	return $name;
}

sub allow
{
	my ($networks, %options) = @_;
	# What waits because it was refused is not to go out later.
	sql(q{SELECT jobq.clear(name) FROM jobq.queue}) unless $options{keep};
	sql(qq{ALTER SYSTEM SET jobq.allow_networks = '$networks'});
	$node->reload;
	# The dispatcher hears of it a moment later than whoever asks first.
	until_ok(sub { sql('SHOW jobq.allow_networks') eq $networks }, "jobq.allow_networks is '$networks'");
	return;
}

# An assertion: a job's attempt comes to that outcome. Returns its id.
sub comes_to
{
	my ($queue, $outcome, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $id = push_job($node, "'$queue'");
	until_is($node, qq{SELECT outcome FROM jobq.attempts WHERE id = '$id' AND outcome IS NOT NULL LIMIT 1}, $outcome, $name);
	return $id;
}

# What is refused

# Each as the URL has it, and the address that it is; without, whether it is one depends on the system.
my @refused = (
	# This host
	[ '127.0.0.1', '127.0.0.1' ],
	[ 'localhost' ],
	[ 'any.localhost' ],
	[ '127.255.255.254', '127.255.255.254' ],
	[ '0.0.0.0', '0.0.0.0' ],
	[ '[::1]', '::1' ],
	[ '[::]', '::' ],
	# The same in other words
	[ '127.1' ],
	[ '127.0.1' ],
	[ '0' ],
	[ '2130706433' ],
	[ '0x7f.1' ],
	[ '0x7f000001' ],
	[ '017700000001' ],
	[ '0177.0.0.01' ],
	[ '%31%32%37.0.0.1' ],
	# In IPv6's clothes: mapped, compatible, NAT64 (of both prefixes), 6to4, Teredo
	[ '[::ffff:127.0.0.1]', '127.0.0.1' ],
	[ '[::ffff:7f00:1]', '127.0.0.1' ],
	[ '[0:0:0:0:0:ffff:127.0.0.1]', '127.0.0.1' ],
	[ '[::127.0.0.1]', '::127.0.0.1' ],
	[ '[64:ff9b::127.0.0.1]', '64:ff9b::7f00:1' ],
	[ '[64:ff9b::a9fe:a9fe]', '64:ff9b::a9fe:a9fe' ],
	[ '[64:ff9b:1::127.0.0.1]', '64:ff9b:1::7f00:1' ],
	[ '[2002:7f00:1::1]', '2002:7f00:1::1' ],
	[ '[2001:0:7f00:1::]', '2001:0:7f00:1::' ],
	# Neighbours and metadata
	[ '10.0.0.1', '10.0.0.1' ],
	[ '172.16.0.1', '172.16.0.1' ],
	[ '192.168.1.1', '192.168.1.1' ],
	[ '100.64.0.1', '100.64.0.1' ],
	[ '169.254.169.254', '169.254.169.254' ],
	[ '[::ffff:169.254.169.254]', '169.254.169.254' ],
	[ '2852039166' ],
	[ '[fd00:ec2::254]', 'fd00:ec2::254' ],
	[ '[fe80::1]', 'fe80::1' ],
	[ '100.100.100.200', '100.100.100.200' ],
	[ '168.63.129.16', '168.63.129.16' ],
	# To many, and to nobody
	[ '224.0.0.1', '224.0.0.1' ],
	[ '[ff02::1]', 'ff02::1' ],
	[ '255.255.255.255', '255.255.255.255' ],
	[ '240.0.0.1', '240.0.0.1' ]);
{
	my %named;
	for my $case (@refused)
	{
		my ($host, $address) = @$case;
		my ($status, $out, $error) = $node->psql('postgres', sprintf q{
			SELECT jobq.create_endpoint('%1$s', 'http://%2$s:%3$s/'); SELECT jobq.create_queue('%1$s', endpoint => '%1$s', max_attempts => 1);
			SELECT jobq.push('%1$s')}, 'refused' . ++$hooks, $host, $port);
		if ($status)
		{
			# No URL of this machine.
			like($error, qr/URL is malformed/, "$host is no host");
			next;
		}
		$named{ (split /\n/, $out)[-1] } = $case;
	}
	my $ids = join ', ', map { "'$_'" } keys %named;
	until_is($node, qq{SELECT count(DISTINCT id) FROM jobq.attempts WHERE id IN ($ids) AND outcome IS NOT NULL}, scalar keys %named,
		'all of them are refused');
	for my $id (sort { $a cmp $b } keys %named)
	{
		my ($host, $address) = @{ $named{$id} };
		# A form that only some systems take for an address is a name elsewhere.
		my ($outcome, $error) = split /\|/, of_job($id, 'outcome, error');
		my $is = $address || $host eq 'localhost' ? qr/^address_not_allowed$/ : qr/^(?:address_not_allowed|dns_error)$/;
		like($outcome, $is, "$host is refused");
		my $plain = $host =~ s/^\[|\]$//gr;
		is($error, qq(address of host "$plain" is not allowed), 'the error says so') if $address;
	}
	is(sql(qq{SELECT count(*) FROM jobq.attempts WHERE id IN ($ids) AND (status_code IS NOT NULL OR response IS NOT NULL)}), 0,
		'there is no answer to any');
	my $stats = $receiver->stats;
	is("$stats->{connections} $stats->{requests}", '0 0', 'nobody has connected to the receiver');
}

my $queue = hook_to($receiver->url('/ok'));
my $secret_path = hook_to($receiver->url('/ok?token=hush', 'localhost'));
{
	my $id = comes_to($secret_path, 'address_not_allowed', 'a name that resolves to an address that is not allowed is refused');
	is(of_job($id, 'error'), 'address of host "localhost" is not allowed', 'with an error that has the host, and no more of the URL');
	my $row = sql(qq{SELECT ok, outcome, status_code IS NULL, error FROM jobq.send_test('$queue')});
	is($row, 'f|address_not_allowed|t|address of host "127.0.0.1" is not allowed', 'a test is refused too');
	is($receiver->stats->{connections}, 0, 'nobody has connected to the receiver');
}

# What is allowed, and no longer

{
	my $named = hook_to($receiver->url('/ok', 'localhost'));
	allow('127.0.0.1');
	my $id = comes_to($queue, 'completed', 'an address is allowed after a reload');
	is($receiver->stats->{requests}, 1, 'and connected to');
	is(sql(qq{SELECT ok, outcome, address FROM jobq.send_test('$queue')}), 't|completed|127.0.0.1', 'also by a test');
	comes_to($named, 'completed', 'and by its name');
	my $mapped = hook_to($receiver->url('/ok', '[::ffff:127.0.0.1]'));
	comes_to($mapped, 'completed', 'and in its mapped form');
	my $two = hook_to("http://127.0.0.2:$port/");
	comes_to($two, 'address_not_allowed', 'its neighbour is not');

	my $before = $receiver->stats;
	cmp_ok($before->{open_connections}, '>', 0, 'connections are kept open');
	allow('');
	comes_to($_, 'address_not_allowed', 'what is no longer allowed is refused at once, also over such connections') for $queue, $named, $mapped;
	is($receiver->stats->{requests}, $before->{requests}, 'the receiver gets nothing');
	is(sql(qq{SELECT outcome FROM jobq.send_test('$queue')}), 'address_not_allowed', 'nor by a test');

	allow('127.0.0.0/8, ::1');
	comes_to($queue, 'completed', 'a network may be allowed');
	SKIP:
	{
		skip 'this machine has no IPv6', 2 unless $six;
		my $queue = hook_to($six->url('/ok', '[::1]'));
		comes_to($queue, 'completed', 'and one of IPv6');
		allow('127.0.0.0/8');
		comes_to($queue, 'address_not_allowed', 'each by itself');
	}
	allow('127.0.0.1');
}

# An answer that leads elsewhere

{
	my $target = Receiver->start;
	for my $status (301, 302, 303, 307, 308)
	{
		for my $to ($target->url('/followed'), 'http://169.254.169.254/latest/meta-data/', 'file:///etc/passwd')
		{
			my $queue = hook_to($receiver->url("/status/$status?location=$to"));
			my $id = comes_to($queue, "http_$status", "an answer $status that leads to $to is a failure");
			is(of_job($id, 'coalesce(response, $$$$)'), "status $status", 'and not followed');
		}
	}
	is($target->stats->{connections}, 0, 'nobody has connected to where it leads');
}

# The setting

for my $case (
	[ 'nonsense', '"nonsense" is not a network' ],
	[ '127.0.0.1/33', '"127.0.0.1/33" is not a network' ],
	[ '127.0.0.1/-1', '"127.0.0.1/-1" is not a network' ],
	[ '127.0.0.1/', '"127.0.0.1/" is not a network' ],
	[ '::1/129', '"::1/129" is not a network' ],
	[ '10.0.0.0/8, nonsense', '"nonsense" is not a network' ],
	[ '10.0.0.1/8', '"10.0.0.1/8" has bits set to the right of its mask' ],
	[ '127.1', '"127.1" is not a network' ],
	[ 'localhost', '"localhost" is not a network' ],
	[ '127.0.0.1:80', '"127.0.0.1:80" is not a network' ],
	[ '[::1]', '"[::1]" is not a network' ])
{
	my ($list, $detail) = @$case;
	my ($status, $out, $error) = $node->psql('postgres', "ALTER SYSTEM SET jobq.allow_networks = '$list'");
	like($error, qr/ERROR:  invalid value for parameter "jobq\.allow_networks": "\Q$list\E"/, "'$list' is no list of networks");
	like($error, qr/^DETAIL:  \Q$detail\E\.$/m, 'and the detail says why');
}
{
	# In the file it stands where nobody is asked.
	my $offset = -s $node->logfile;
	$node->append_conf('postgresql.conf', q(jobq.allow_networks = 'nonsense'));
	sql('ALTER SYSTEM RESET jobq.allow_networks');
	$node->reload;
	until_ok(sub { occurrences($node, qr/invalid value for parameter "jobq\.allow_networks": "nonsense"/, $offset) > 0 },
		'one in the file is told of in the log');
	comes_to($queue, 'completed', 'and what was allowed before stays');
	$node->append_conf('postgresql.conf', q(jobq.allow_networks = '127.0.0.1'));
	$node->reload;
}
{
	sql('CREATE ROLE app LOGIN');
	my ($status, $out, $error) = $node->psql('postgres', q{SET ROLE app; SET jobq.allow_networks = '127.0.0.1'});
	isnt($status, 0, 'a session cannot set it');
	($status, $out, $error) = $node->psql('postgres', q{SET ROLE app; ALTER SYSTEM SET jobq.allow_networks = '127.0.0.1'});
	like($error, qr/permission denied/, 'nor can a role without the right');
	($status, $out, $error) = $node->psql('postgres', q{SET ROLE app; SHOW jobq.allow_networks});
	isnt($status, 0, 'which does not see it either');
}

# URLs

for my $case (
	[ 'ftp://example.com/', qr/URL must begin with http:\/\/ or https:\/\// ],
	[ 'file:///etc/passwd', qr/URL must begin with http:\/\/ or https:\/\// ],
	[ 'gopher://127.0.0.1/', qr/URL must begin with http:\/\/ or https:\/\// ],
	[ 'unix:///tmp/socket', qr/URL must begin with http:\/\/ or https:\/\// ],
	[ '//example.com/', qr/URL/ ],
	[ 'example.com', qr/URL/ ],
	[ 'http:///path', qr/URL must have a host/ ],
	[ 'http://ada:hush@example.com/', qr/URL must not contain a user name or password/ ],
	[ 'https://ada@example.com/', qr/URL must not contain a user name or password/ ],
	[ 'http://127.0.0.1:80@example.com/', qr/URL must not contain a user name or password/ ],
	[ 'http://example.com:0/', qr/URL must have a port between 1 and 65535/ ],
	[ 'http://example.com:65536/', qr/URL must have a port between 1 and 65535/ ],
	[ "http://example.com/\n", qr/URL must not contain spaces or control characters/ ],
	[ 'http://example.com/ HTTP/1.1', qr/URL must not contain spaces or control characters/ ])
{
	my ($url, $reason) = @$case;
	my $shown = $url =~ s/\n/\\n/r;
	my ($status, $out, $error) = $node->psql('postgres', "SELECT jobq.create_endpoint('bad', '$url')");
	like($error, $reason, "$shown is refused");
	unlike($error, qr/hush/, 'without its password') if $url =~ /hush/;
	($status, $out, $error) = $node->psql('postgres', "UPDATE jobq.endpoint SET url = '$url' WHERE name = '$queue'");
	like($error, $reason, 'also by an UPDATE');
}

# What becomes of the jobs

{
	allow('');
	hook($node, 'down', $receiver->url('/ok'), endpoint => { breaker_failures => 3, breaker_first => '1 s', breaker_longest => '1 s' },
		queue => { max_attempts => 5, retry_first => '1 ms', retry_longest => '1 ms', retry_jitter => 0 });
	sql(q{SELECT jobq.push('down') FROM generate_series(1, 20)});
	until_is($node, q{SELECT breaker IN ('open', 'half_open') FROM jobq.endpoint_stats WHERE endpoint = 'down'}, 't',
		'an endpoint whose address is not allowed has its breaker open');
	is(sql(q{SELECT last_outcome, last_error FROM jobq.endpoint_stats WHERE endpoint = 'down'}),
		'address_not_allowed|address of host "127.0.0.1" is not allowed', 'and the reason is to be seen');
	my $failed = sql(q{SELECT failed FROM jobq.endpoint_stats WHERE endpoint = 'down'});
	until_is($node, qq{SELECT failed > $failed + 1 FROM jobq.endpoint_stats WHERE endpoint = 'down'}, 't', 'it is probed now and then');
	is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'down' AND state = 'queued'}), 20, 'all its jobs wait');
	is(sql(q{SELECT sum(failures) FROM jobq.jobs WHERE queue = 'down'}), 0, 'and none is charged: nothing left');
	my $before = $receiver->stats->{requests};
	allow('127.0.0.1', keep => 1);
	until_is($node, q{SELECT count(*) FROM jobq.jobs WHERE queue = 'down' AND state = 'completed'}, 20, 'and go out once it is allowed');
	is($receiver->stats->{requests} - $before, 20, 'each once');
}

$node->stop;
done_testing();
