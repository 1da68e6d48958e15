# A webhook receiver (test/receiver.js) for TAP tests.
#
#   my $receiver = Receiver->start(stamp => 'pushed_at');
#   $receiver->url('/ok')                      what to give to jobq.create_endpoint
#   $receiver->stats                           what /_stats tells, as a hash
#   $receiver->requests(id => $id)             what /_requests tells, as a list of hashes
#   $receiver->wait_for(sub { $_[0]{distinct} >= 100 }, 'a hundred jobs')
#                                              polls the stats; dies after the timeout
#   $receiver->stop; $receiver->restart        down for a while, then up again on the same port,
#                                              with nothing remembered but what it verifies with
#   $receiver->verify_with($secret, ...)       from now on it answers 401 to what these do not verify
#   $receiver->answer('/status/503')           from now on everything is answered like that;
#                                              answer() ends it
#
# Over TLS, with a certificate from Certificates.pm; http2 offers HTTP/2 beside 1.1, client_ca wants a
# client's certificate of that authority:
#   my $authority = Certificates->new;
#   my $receiver = Receiver->start(tls => $authority->server, http2 => 1, client_ca => $authority->ca);
# The receiver ends with the test.
package Receiver;
use strict;
use warnings;
use Cwd 'abs_path';
use File::Basename 'dirname';
use File::Temp 'tempdir';
use HTTP::Tiny;
use JSON::PP;
use POSIX ();
use Time::HiRes qw(time usleep);

my $timeout = $ENV{PG_TEST_TIMEOUT_DEFAULT} || 180;    # seconds
my $script = dirname(abs_path(__FILE__)) . '/../receiver.js';
my $dir = tempdir(CLEANUP => 1);
my $count = 0;

# Options become the program's: stamp => 'pushed_at', fail_body => 'text', port => 1234, keep => 10,
# http2 => 1, max_streams => 10, secret => [ ... ]. tls is a pair of files.
sub start
{
	my ($class, %options) = @_;
	if (my $pair = delete $options{tls})
	{
		@options{qw(certificate key)} = @$pair{qw(certificate key)};
	}
	my $self = bless {
		options => \%options,
		file => "$dir/port" . ++$count,
		http => HTTP::Tiny->new(timeout => 30, proxy => undef, http_proxy => undef),
	}, $class;
	return $self->_run;
}

sub _run
{
	my ($self) = @_;
	my $parent = $$;
	unlink $self->{file};
	my @command = ('node', $script, '--control', '--port-file', $self->{file});
	for my $name (sort keys %{ $self->{options} })
	{
		(my $option = $name) =~ tr/_/-/;
		my $value = $self->{options}{$name};
		push @command, $name eq 'http2' ? "--$option" : map { ("--$option", $_) } ref $value ? @$value : $value;
	}
	$self->{pid} = fork;
	die "fork: $!" unless defined $self->{pid};
	if (!$self->{pid})
	{
		# What it says must not be taken for the test's own TAP.
		open STDOUT, '>', "$self->{file}.log" or POSIX::_exit(1);
		open STDERR, '>&', \*STDOUT;
		open STDIN, '<', '/dev/null';
		exec @command or POSIX::_exit(127);
	}
	$self->{owner} = $parent;
	my $until = time + $timeout;
	until (-e $self->{file})
	{
		die 'the receiver did not start: ' . _slurp("$self->{file}.log")
		  if waitpid($self->{pid}, POSIX::WNOHANG) == $self->{pid} || time > $until;
		usleep(10_000);
	}
	($self->{options}{port}, $self->{control}) = split ' ', _slurp($self->{file});
	return $self;
}

sub _slurp
{
	my ($file) = @_;
	open my $in, '<', $file or return '';
	local $/;
	return scalar <$in>;
}

sub port { return $_[0]{options}{port} }

# host: another name of this machine than 127.0.0.1.
sub url
{
	my ($self, $path, $host) = @_;
	my $scheme = $self->{options}{certificate} ? 'https' : 'http';
	return "$scheme://" . ($host // '127.0.0.1') . ":$self->{options}{port}" . ($path // '/');
}

# On the port that is not for deliveries.
sub _ask
{
	my ($self, $method, $path, %options) = @_;
	my $response = $self->{http}->request($method, "http://127.0.0.1:$self->{control}$path", \%options);
	die "receiver: $response->{status} $response->{content}" unless $response->{success};
	return decode_json($response->{content});
}

sub _get
{
	my ($self, $path, %query) = @_;
	my $text = $self->{http}->www_form_urlencode(\%query);
	return $self->_ask('GET', $path . ($text eq '' ? '' : "?$text"));
}

# Keys: from, last. See test/receiver.js for what is told.
sub stats { my ($self, %query) = @_; return $self->_get('/_stats', %query) }

# Keys: id, path, status, attempt, from, limit.
sub requests { my ($self, %query) = @_; return @{ $self->_get('/_requests', %query) } }

sub reset { $_[0]->_get('/_reset'); return }

sub verify_with
{
	my ($self, @secrets) = @_;
	$self->_ask('POST', '/_secrets', content => encode_json(\@secrets));
	$self->{options}{secret} = \@secrets;
	return;
}

sub answer
{
	my ($self, $path) = @_;
	$self->_get('/_answer', defined $path ? (as => $path) : ());
	return;
}

# Calls $check with the stats until it returns true; returns the stats then.
sub wait_for
{
	my ($self, $check, $what, $seconds) = @_;
	my $until = time + ($seconds // $timeout);
	while (1)
	{
		my $stats = $self->stats;
		return $stats if $check->($stats);
		die "timed out waiting for $what; the receiver saw " . encode_json($stats) if time > $until;
		usleep(20_000);
	}
}

sub stop
{
	my ($self) = @_;
	return unless $self->{pid} && $self->{owner} == $$;
	local ($?, $!);
	kill 'KILL', $self->{pid};
	waitpid $self->{pid}, 0;
	delete $self->{pid};
	return;
}

sub restart { my ($self) = @_; $self->stop; return $self->_run }

sub DESTROY { $_[0]->stop }

1;
