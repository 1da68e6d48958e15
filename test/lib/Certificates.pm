# An authority of the test's own, and the certificates it gives, made by openssl when the test runs.
#
#   my $authority = Certificates->new;           in a directory that is gone when the test ends
#   $authority->ca                               the file that whoever trusts it is given
#   my $pair = $authority->server;               for localhost, 127.0.0.1 and ::1
#   $authority->server(names => 'DNS:other.example')     for another host
#   $authority->server(expired => 1)             over since 2020
#   $authority->client                           for a client that proves who it is; name => 'ada'
# A pair is { certificate => FILE, key => FILE }, PEM both, the key without a passphrase. Another
# authority is another object: whoever trusts the one does not trust the other.
package Certificates;
use strict;
use warnings;
use File::Temp 'tempdir';
use IPC::Run;

my @new_key = qw(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes);
my $authorities = 0;

sub new
{
	my ($class) = @_;
	my $dir = tempdir(CLEANUP => 1);
	my $self = bless { dir => $dir, count => 0 }, $class;
	_write("$dir/index", '');
	_write("$dir/config", <<"END");
[req]
distinguished_name = subject
[subject]
[ca]
default_ca = own
[own]
database = $dir/index
new_certs_dir = $dir
certificate = $dir/ca.pem
private_key = $dir/ca.key
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
[any]
commonName = supplied
[v3_ca]
subjectKeyIdentifier = hash
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign
END
	$self->_openssl('req', '-x509', @new_key, '-keyout', "$dir/ca.key", '-out', "$dir/ca.pem",
		'-subj', "/CN=test authority " . ++$authorities, '-days', 2, '-extensions', 'v3_ca');
	return $self;
}

sub ca { return "$_[0]{dir}/ca.pem" }

# names: what the certificate is good for, as openssl writes a subjectAltName.
sub server
{
	my ($self, %options) = @_;
	return $self->_issue(
		name => 'server',
		use => 'serverAuth',
		names => 'DNS:localhost,IP:127.0.0.1,IP:::1',
		%options);
}

# name: its common name, which a receiver tells of each request.
sub client
{
	my ($self, %options) = @_;
	return $self->_issue(name => 'client', use => 'clientAuth', %options);
}

sub _issue
{
	my ($self, %options) = @_;
	my $file = "$self->{dir}/" . ++$self->{count};
	my $extensions = join "\n", 'authorityKeyIdentifier = keyid', 'basicConstraints = CA:false',
	  "extendedKeyUsage = $options{use}", $options{names} ? "subjectAltName = $options{names}" : (), '';
	_write("$file.extensions", $extensions);
	$self->_openssl('req', @new_key, '-keyout', "$file.key", '-out', "$file.request", '-subj', "/CN=$options{name}");
	$self->_openssl('ca', '-batch', '-notext', '-in', "$file.request", '-out', "$file.pem",
		'-extfile', "$file.extensions",
		$options{expired} ? qw(-startdate 200101000000Z -enddate 200102000000Z) : qw(-days 2));
	return { certificate => "$file.pem", key => "$file.key" };
}

sub _openssl
{
	my ($self, $command, @options) = @_;
	my $out = '';
	IPC::Run::run([ 'openssl', $command, '-config', "$self->{dir}/config", @options ],
		'<', \undef, '>', \$out, '2>&1')
	  or die "openssl $command: $out";
	return;
}

sub _write
{
	my ($file, $text) = @_;
	open my $out, '>', $file or die "$file: $!";
	print $out $text;
	close $out or die "$file: $!";
	return;
}

1;
