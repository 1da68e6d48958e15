# How deliveries travel: over TLS, with certificates of both sides; over HTTP/2 and connections that are used
# again; through proxies; and with few descriptors.
use strict;
use warnings;
use Certificates;
use File::Temp 'tempdir';
use FindBin;
use lib "$FindBin::RealBin/../lib";
use JobqTest;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX 'mkfifo';
use Receiver;
use Test::More;
use Time::HiRes 'usleep';

my $dir = tempdir(CLEANUP => 1);
chmod 0755, $dir;
my $node = jobq_node('tls', conf => [ 'jobq.scan_interval = 1h' ]);
my ($authority, $other) = map { Certificates->new } 1 .. 2;
my $h1 = Receiver->start(tls => $authority->server);
my $h2 = Receiver->start(tls => $authority->server, http2 => 1);

sub sql { return $node->safe_psql('postgres', $_[0]) }

# An endpoint and a queue that trusts the authority. A job has one attempt.
sub tls_hook
{
	my ($name, $url, %endpoint) = @_;
	hook($node, $name, $url, endpoint => { ca_file => $authority->ca, %endpoint }, queue => { max_attempts => 1 });
	return;
}

sub alter { my ($name, %options) = @_; sql(sprintf q{SELECT jobq.alter_endpoint('%s', options => '%s')}, $name, encode_json(\%options)); return }

# Pushes a job; an assertion: its only attempt comes to that outcome. Returns its id.
sub comes_to
{
	my ($queue, $outcome, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $id = push_job($node, "'$queue'");
	until_is($node, qq{SELECT string_agg(outcome, ', ') FROM jobq.attempts WHERE id = '$id' AND outcome IS NOT NULL}, $outcome, $name);
	return $id;
}

sub error_of { my ($id) = @_; return sql(qq{SELECT error FROM jobq.attempts WHERE id = '$id'}) }

# Jobs that are under way together; an assertion: they are completed, each at its first attempt.
sub many
{
	my ($queue, $count, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	sql(qq{SELECT jobq.push('$queue') FROM generate_series(1, $count)});
	until_is($node, qq{SELECT count(*) FROM jobq.jobs WHERE queue = '$queue' AND state NOT IN ('completed', 'dead')}, 0, $name);
	is(sql(qq{
			SELECT string_agg(DISTINCT a.attempt || ' ' || a.outcome || coalesce(': ' || a.error, ''), ', ')
			FROM jobq.attempts AS a JOIN jobq.jobs AS j USING (id) WHERE j.queue = '$queue'}), '1 completed', 'each at the first attempt');
	return;
}

# Certificates of receivers

tls_hook('trusted', $h1->url('/ok'));
{
	my $id = comes_to('trusted', 'completed', 'a certificate of the authority in ca_file is accepted');
	my ($request) = $h1->requests(id => $id);
	is($request->{http}, '1.1', 'by a receiver that speaks HTTP/1.1 only');
	tls_hook('by_name', $h1->url('/ok', 'localhost'));
	comes_to('by_name', 'completed', 'also by its name');
}
{
	tls_hook('unknown', $h1->url('/ok'), ca_file => undef);
	my $id = comes_to('unknown', 'tls_error', 'without ca_file it is refused');
	like(error_of($id), qr/self.signed certificate|unable to get local issuer/i, 'and the error says why');
	is(scalar(() = $h1->requests(id => $id)), 0, 'the receiver hears nothing of the job');
	tls_hook('stranger', $h1->url('/ok'), ca_file => $other->ca);
	comes_to('stranger', 'tls_error', 'so is one of another authority');
	is(sql(q{SELECT ok, outcome, status_code IS NULL, address FROM jobq.send_test('stranger')}), 'f|tls_error|t|127.0.0.1',
		'a test says the same');
	like(sql(q{SELECT error FROM jobq.send_test('stranger')}), qr/certificate/, 'and why');
}
{
	my $expired = Receiver->start(tls => $authority->server(expired => 1));
	tls_hook('expired', $expired->url('/ok'));
	like(error_of(comes_to('expired', 'tls_error', 'one that has expired is refused')), qr/expired/, 'and the error says so');
	my $elsewhere = Receiver->start(tls => $authority->server(names => 'DNS:elsewhere.example'));
	tls_hook('elsewhere', $elsewhere->url('/ok', 'localhost'));
	like(error_of(comes_to('elsewhere', 'tls_error', 'one of another host is refused')),
		qr/no alternative certificate subject name matches target host name 'localhost'/, 'and the error says so');
	is($_->stats->{requests}, 0, 'neither gets a request') for $expired, $elsewhere;
}
{
	# With others before it, as in a system's file.
	append_to_file("$dir/long.pem", slurp_file($other->ca) x 100 . slurp_file($authority->ca));
	tls_hook('long', $h1->url('/slow?ms=100'), ca_file => "$dir/long.pem", max_in_flight => 50);
	many('long', 50, 'a ca_file may have many certificates');
}
{
	# In both directions, so that neither a connection nor what was trusted before is used again.
	alter('trusted', ca_file => $other->ca);
	comes_to('trusted', 'tls_error', 'another ca_file takes effect at once');
	alter('trusted', ca_file => $authority->ca);
	comes_to('trusted', 'completed', 'and so does the one before');
}

# Certificates of ours

# An assertion: jobs fail, one of them because the receiver does not like our certificate; returns its id. It may end
# the connection before it has said so.
sub refused
{
	my ($queue, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($id, $outcome);
	until_ok(sub {
		$id = push_job($node, "'$queue'");
		$outcome = $node->poll_query_until('postgres', qq{SELECT count(*) = 1 FROM jobq.attempts WHERE id = '$id' AND outcome IS NOT NULL})
		  && sql(qq{SELECT outcome FROM jobq.attempts WHERE id = '$id'});
		return $outcome ne 'connection_reset';
	}, $name);
	is($outcome, 'tls_error', 'by a TLS error');
	return $id;
}

for my $receiver (map { Receiver->start(tls => $authority->server, client_ca => $authority->ca, @$_) } [], [ http2 => 1 ])
{
	my $version = $receiver->{options}{http2} ? 'HTTP/2' : 'HTTP/1.1';
	my $queue = $receiver->{options}{http2} ? 'mutual2' : 'mutual1';
	my ($ada, $bob) = map { $authority->client(name => $_) } qw(ada bob);
	tls_hook($queue, $receiver->url('/ok'), breaker_failures => 0);
	my $id = refused($queue, "$version: who wants a client's certificate refuses one without");
	like(error_of($id), qr/certificate required|handshake failure/, 'and the error says so');
	alter($queue, client_cert_file => $ada->{certificate}, client_key_file => $ada->{key});
	$id = comes_to($queue, 'completed', "$version: with client_cert_file and client_key_file it is let in");
	is(($receiver->requests(id => $id))[0]{client}, 'ada', 'by its name');
	alter($queue, client_cert_file => $bob->{certificate}, client_key_file => $bob->{key});
	$id = comes_to($queue, 'completed', 'another certificate takes effect at once');
	is(($receiver->requests(id => $id))[0]{client}, 'bob', 'and is the one that is shown');
	my $stranger = $other->client(name => 'eve');
	alter($queue, client_cert_file => $stranger->{certificate}, client_key_file => $stranger->{key});
	$id = push_job($node, "'$queue'");
	until_state($node, $id, 'dead', "$version: one of another authority is refused");
	is(scalar(() = $receiver->requests(id => $id)), 0, 'without a request');
	append_to_file("$dir/both.pem", slurp_file($ada->{certificate}) . slurp_file($ada->{key}));
	alter($queue, client_cert_file => "$dir/both.pem", client_key_file => undef);
	$id = comes_to($queue, 'completed', 'the key may stand in client_cert_file');
	is(($receiver->requests(id => $id))[0]{client}, 'ada', 'with its certificate');
}

# Files that are of no use

{
	my $ada = $authority->client;
	my $bob = $authority->client;
	append_to_file("$dir/unreadable.pem", slurp_file($authority->ca));
	chmod 0, "$dir/unreadable.pem";
	append_to_file("$dir/text.pem", 'no certificate');
	mkfifo("$dir/fifo.pem", 0644) or die "mkfifo: $!";
	for my $case (
		[ "$dir/none.pem", qr/ca_file "\Q$dir\E\/none\.pem".*No such file/, 'a ca_file that is missing' ],
		[ "$dir/unreadable.pem", qr/ca_file "\Q$dir\E\/unreadable\.pem".*Permission denied/, 'one that may not be read' ],
		[ $dir, qr/ca_file "\Q$dir\E".*not a regular file/, 'a directory' ],
		[ "$dir/fifo.pem", qr/fifo\.pem".*not a regular file/, 'one that a read would wait for' ],
		[ "$dir/text.pem", qr/certificate.*text\.pem/, 'one that has no certificate' ])
	{
		my ($file, $error, $name) = @$case;
		tls_hook('ca', $h1->url('/ok'), ca_file => $file) if $file eq "$dir/none.pem";
		alter('ca', ca_file => $file);
		like(error_of(comes_to('ca', 'tls_error', "$name is a TLS error")), $error, 'that names it and the reason');
		comes_to('trusted', 'completed', 'while others go on');
	}
	tls_hook('key', $h1->url('/ok'), client_cert_file => $ada->{certificate}, client_key_file => "$dir/none.pem");
	like(error_of(comes_to('key', 'tls_error', 'a missing client_key_file is a TLS error')),
		qr/client_key_file ".*none\.pem".*No such file/, 'that names it and the reason');
	alter('key', client_key_file => $bob->{key});
	like(error_of(comes_to('key', 'tls_error', 'so is the key of another certificate')), qr/key/, 'which the error says');
	alter('key', client_cert_file => "$dir/none.pem");
	like(error_of(comes_to('key', 'tls_error', 'so is a missing client_cert_file')), qr/client_cert_file ".*none\.pem".*No such file/,
		'that names it and the reason');
	is(sql(q{SELECT outcome FROM jobq.send_test('key')}), 'tls_error', 'a test says the same');
	unlike(slurp_file($node->logfile), qr/-----BEGIN|$dir/, 'the log does not speak of them');
}
{
	# Each job would be tried again 1 ms after its failure.
	my $count = 200;
	hook($node, 'storm', $h1->url('/ok'), endpoint => { ca_file => "$dir/none.pem", breaker_first => '1 h', breaker_longest => '1 h' },
		queue => { max_attempts => 1000, retry_first => '1 ms', retry_longest => '1 ms', retry_jitter => 0 });
	sql(qq{SELECT jobq.push('storm') FROM generate_series(1, $count)});
	until_is($node, q{SELECT breaker FROM jobq.endpoint_stats WHERE endpoint = 'storm'}, 'open',
		'a file that is missing opens the breaker: no retry storm');
	until_is($node, q{SELECT in_flight FROM jobq.endpoint_stats WHERE endpoint = 'storm'}, 0, 'nothing is sent any more');
	my $failed = sql(q{SELECT failed FROM jobq.endpoint_stats WHERE endpoint = 'storm'});
	cmp_ok($failed, '<=', 100, "after $failed failures of $count jobs");
	comes_to('trusted', 'completed', 'others go on');
	is(sql(q{SELECT failed FROM jobq.endpoint_stats WHERE endpoint = 'storm'}), $failed, 'and there are no more');
	is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'storm' AND state = 'queued'}), $count, 'its jobs wait');
	cmp_ok(sql(q{SELECT max(failures) FROM jobq.jobs WHERE queue = 'storm'}), '<=', 10, 'with their attempts');
}

# HTTP/2, and connections that are used again

{
	tls_hook('multiplexed', $h2->url('/slow?ms=300'), max_in_flight => 100);
	my $before = $h2->stats->{connections};
	many('multiplexed', 100, 'a hundred slow requests over HTTP/2');
	my $stats = $h2->stats;
	my $connections = $stats->{connections} - $before;
	note("$connections connections, $stats->{peak_in_flight} requests at once");
	cmp_ok($stats->{peak_in_flight}, '>=', 90, 'are under way at once');
	cmp_ok($connections, '<=', 5, 'over few connections');
	is_deeply($stats->{versions}, { '2.0' => 100 }, 'none by another version');
}
{
	my $receiver = Receiver->start(tls => $authority->server, http2 => 1, max_streams => 10);
	tls_hook('narrow', $receiver->url('/slow?ms=100'), max_in_flight => 100);
	many('narrow', 100, 'a receiver that takes ten requests a connection gets a hundred');
	my $connections = $receiver->stats->{connections};
	cmp_ok($connections, '>=', 10, "over several connections ($connections)");
}
{
	tls_hook('forced', $h2->url('/ok'), http_version => '1.1');
	my $id = comes_to('forced', 'completed', 'http_version 1.1 is spoken where it is asked for');
	is(($h2->requests(id => $id))[0]{http}, '1.1', 'though the receiver offers 2');
	alter('forced', http_version => '2');
	$id = comes_to('forced', 'completed', 'another http_version takes effect at once');
	is(($h2->requests(id => $id))[0]{http}, '2.0', 'and is the one that is spoken');
	is(sql(q{SELECT http_version FROM jobq.send_test('forced')}), '2', 'a test tells which it was');
}
for my $case ([ 'reused1', $h1 ], [ 'reused2', $h2 ], [ 'plain', Receiver->start ])
{
	my ($queue, $receiver) = @$case;
	tls_hook($queue, $receiver->url('/ok'), max_in_flight => 4);
	my $before = $receiver->stats->{connections};
	many($queue, 100, "$queue: a hundred quick jobs, four at once");
	my $connections = $receiver->stats->{connections} - $before;
	cmp_ok($connections, '<=', 8, "share connections ($connections)");
}
{
	# The library in the receiver has its own opinion of what is signed.
	my $secret = sql(q{SELECT secret FROM jobq.secrets('multiplexed')});
	$h2->verify_with($secret);
	alter('multiplexed', url => $h2->url('/ok'));
	sql(q{DELETE FROM jobq.finished});
	many('multiplexed', 50, 'signatures verify over TLS and HTTP/2');
	$h2->verify_with(sql(q{SELECT secret FROM jobq.secrets('trusted')}));
	comes_to('multiplexed', 'http_401', 'but not with the secret of another endpoint');
	$h2->verify_with;
}

# Proxies

# Its port, and the file in which its requests are. It ends with the test.
sub proxy
{
	my ($name, @options) = @_;
	my ($port_file, $log) = ("$dir/$name.port", "$dir/$name.log");
	my $pid = fork // die "fork: $!";
	if (!$pid)
	{
		open STDOUT, '>', "$dir/$name.out" or POSIX::_exit(1);
		open STDERR, '>&', \*STDOUT;
		exec 'node', "$FindBin::RealBin/../lib/proxy.js", '--port-file', $port_file, '--log', $log, @options or POSIX::_exit(127);
	}
	for (1 .. 100 * $timeout) { last if -e $port_file; usleep(10_000) }
	chomp(my $port = slurp_file($port_file));
	return ("http://127.0.0.1:$port", $log);
}

{
	my ($proxy, $log) = proxy('proxy');
	my $plain = Receiver->start;
	tls_hook('proxied', $plain->url('/ok'));
	comes_to('proxied', 'completed', 'without a proxy');
	is(slurp_file($log), '', 'none is used');
	alter('proxied', proxy => $proxy);
	comes_to('proxied', 'completed', 'a proxy is used at once where it is set');
	my $url = $plain->url('/ok');
	like(slurp_file($log), qr/\APOST \Q$url\E \d+\n\z/, 'by requests that name the whole URL');
	comes_to('trusted', 'completed', 'other endpoints');
	is(scalar(() = slurp_file($log) =~ /\n/g), 1, 'do not use it');
	alter('proxied', proxy => undef);
	comes_to('proxied', 'completed', 'and when it is taken away');
	is(scalar(() = slurp_file($log) =~ /\n/g), 1, 'it is not used any more');

	truncate $log, 0;
	for my $receiver ($h1, $h2)
	{
		my $queue = $receiver == $h1 ? 'tunnel1' : 'tunnel2';
		tls_hook($queue, $receiver->url('/ok'), proxy => $proxy);
		my $id = comes_to($queue, 'completed', "$queue: over TLS a proxy opens a tunnel");
		is(($receiver->requests(id => $id))[0]{http}, $receiver == $h1 ? '1.1' : '2.0', 'in which there is the usual version');
		alter($queue, ca_file => $other->ca);
		comes_to($queue, 'tls_error', 'and the receiver has to prove who it is');
	}
	like(slurp_file($log), qr/\A(?:CONNECT 127\.0\.0\.1:\d+ 0\n)+\z/, 'and is told nothing but where to');
	for my $port (map { $_->port } $h1, $h2) { like(slurp_file($log), qr/:$port /, 'which is the receiver') }

	my ($refusing) = proxy('refusing', '--refuse');
	tls_hook('refused', $h1->url('/ok'), proxy => $refusing);
	my $id = comes_to('refused', 'proxy_error', 'a proxy that opens no tunnel has an outcome of its own');
	like(error_of($id), qr/403/, 'with its answer');

	# The dispatcher's own environment does not count.
	my ($not_asked, $log_of_it) = proxy('environment');
	{
		local @ENV{qw(http_proxy https_proxy ALL_PROXY)} = ($not_asked) x 3;
		$node->restart;
	}
	dispatcher($node);
	comes_to('trusted', 'completed', 'with a proxy in the environment of the server');
	is(slurp_file($log_of_it), '', 'it is not used');
	# Nor does it take the place of what is set.
	comes_to('tunnel1', 'tls_error', 'what is set is used as before');

	# It is the proxy that is connected to.
	sql(q{ALTER SYSTEM SET jobq.allow_networks = '127.0.0.2'});
	$node->reload;
	my $requests = -s $log;
	until_is($node, q{SELECT outcome FROM jobq.send_test('tunnel2')}, 'address_not_allowed', 'a proxy at an address that is not allowed is not used');
	like(sql(q{SELECT error FROM jobq.send_test('tunnel2')}), qr/^address of proxy "127\.0\.0\.1" is not allowed$/, 'and the error says so');
	is(-s $log, $requests, 'it hears nothing');
	alter('tunnel2', proxy => $proxy =~ s/127\.0\.0\.1/127.0.0.2/r);
	is(sql(q{SELECT outcome FROM jobq.send_test('tunnel2')}), 'connection_refused', 'one at an address that is allowed is tried');
	sql(q{ALTER SYSTEM RESET jobq.allow_networks});
	$node->reload;
}

# Few descriptors

# The limits of this process, and so of what it starts from here on.
system_or_bail('prlimit', '--pid', $$, '--nofile=400:400');
{
	my @receivers = ($h1, Receiver->start);
	my $few = jobq_node('few', conf => [ 'jobq.scan_interval = 1h', 'max_files_per_process = 100' ]);
	my $pid = dispatcher($few);
	my $own = $node;
	$node = $few;
	$_->reset for @receivers;
	tls_hook('few1', $receivers[0]->url('/slow?ms=300'), max_in_flight => 300);
	tls_hook('few2', $receivers[1]->url('/slow?ms=300'), max_in_flight => 300);
	like(slurp_file("/proc/$pid/limits"), qr/^Max open files\s+400\s+400\s/m, 'the dispatcher may open 400 files');
	sql(q{SELECT jobq.push(q) FROM generate_series(1, 300), unnest('{few1,few2}'::text[]) AS q});
	my $most = 0;
	until_ok(sub {
		opendir(my $descriptors, "/proc/$pid/fd") or die "fd: $!";
		my $now = () = readdir $descriptors;
		$most = $now if $now > $most;
		return $receivers[0]->stats->{answered} + $receivers[1]->stats->{answered} >= 600;
	}, '600 deliveries get through');
	many('few1', 1, 'none failed for want of a descriptor');
	many('few2', 1, 'nor to another receiver');
	my $peak = $receivers[0]->stats->{peak_connections} + $receivers[1]->stats->{peak_connections};
	note("up to $most descriptors, at most $peak connections");
	cmp_ok($most, '<', 400, 'it never had as many open as it may');
	cmp_ok($most, '>', 100, 'but used many');
	$few->stop;
}

done_testing();
