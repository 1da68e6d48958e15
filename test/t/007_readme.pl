# What README.md shows is run: its SQL in order, its receiver, its worker. The chapter on receiving has a
# test of its own.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../lib";
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'usleep';

my $readme = slurp_file("$FindBin::Bin/../../README.md");
$readme =~ s/^## Receiving\n.*?(?=^## )//ms or die 'README.md has no chapter on receiving';
my @blocks;
push @blocks, { language => $1, text => $2 } while $readme =~ /^```(\w+)\n(.*?)^```/msg;
my ($receiver) = map { $_->{text} } grep { $_->{language} eq 'js' } @blocks;
my ($worker) = map { $_->{text} } grep { $_->{language} eq 'python' } @blocks;
my ($transaction, @sql) = map { $_->{text} } grep { $_->{language} eq 'sql' } @blocks;

my $node = PostgreSQL::Test::Cluster->new('readme');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'jobq'\njobq.allow_networks = '127.0.0.1'");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION jobq');

my $dir = PostgreSQL::Test::Utils::tempdir();
my $port = PostgreSQL::Test::Cluster::get_free_port();

sub program
{
	my ($name, $text, @command) = @_;
	append_to_file("$dir/$name", $text);
	my ($in, $out) = ('', '');
	my $handle = IPC::Run::start([ @command, "$dir/$name" ], '<', \$in, '>', \$out, '2>&1');
	return { handle => $handle, out => \$out };
}

sub wait_for
{
	my ($program, $pattern, $what) = @_;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	while (${ $program->{out} } !~ $pattern && time < $until)
	{
		$program->{handle}->pump_nb;
		usleep(10_000);
	}
	like(${ $program->{out} }, $pattern, $what);
}

{
	local $ENV{PORT} = $port;
	$receiver = program('receiver.js', $receiver, 'node');
}
for my $text (@sql)
{
	$text =~ s/127\.0\.0\.1:8080/127.0.0.1:$port/;
	my ($code, $out, $err) = $node->psql('postgres', $text);
	my ($first) = $text =~ /^(.*)/;
	is($err, '', "SQL runs: $first");
}
wait_for($receiver, qr/order \{ order: 1, total: 42 \}/, 'the receiver gets the pushed order');
wait_for($receiver, qr/order \{.*customer: 'ada'.*\}/, 'the receiver gets the row of the trigger');

{
	local $ENV{DSN} = $node->connstr('postgres');
	$worker = program('worker.py', $worker, '/usr/bin/python3');
}
wait_for($worker, qr/send \{'to': 'ada\@example.com'\}/, 'the worker gets the e-mail when it is due');
ok($node->poll_query_until('postgres', q{
		SELECT count(*) = 0 FROM jobq.jobs WHERE state IN ('queued', 'running')}),
	'all jobs end');

is($node->psql('postgres', $transaction), 0, 'the transaction at the top runs');
wait_for($receiver, qr/order \{ order: 1 \}/, 'the job of the transaction at the top arrives');
ok($node->poll_query_until('postgres', q{
		SELECT bool_and(state = 'completed' AND error IS NULL) FROM jobq.jobs}),
	'every job of the page is completed');
is($node->safe_psql('postgres', q{
		SELECT result FROM jobq.jobs WHERE queue = 'orders' LIMIT 1}),
	'{"received": true}', 'the JSON of the receiver is the result');

$_->{handle}->kill_kill for $receiver, $worker;
$node->stop;
done_testing();
