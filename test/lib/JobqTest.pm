# What the TAP tests share.
#
#   my $node = jobq_node('name', conf => ['jobq.scan_interval = 1h']);
#                                    a new server with the library preloaded and the extension in
#                                    database postgres, whose dispatcher runs
#   hook($node, 'mail', $receiver->url('/ok'), endpoint => {...}, queue => {...});
#                                    an endpoint and a queue of one name that delivers to it
#   my $id = push_job($node, q('mail', '{}', delay => '1 s'));
#   until_is($node, $query, $expected, $name);     an assertion: the query comes to that result
#   until_state($node, $id, 'completed', $name);   an assertion: the job comes to that state
#   until_ok(sub { ... }, $name);                  an assertion: the sub comes to return true
# Whatever waits polls with a limit, and fails when it is over.
package JobqTest;
use strict;
use warnings;
use Exporter 'import';
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw($timeout jobq_node hook push_job story state_of until_is until_state until_ok
  dispatcher dispatcher_pid until_running until_idle session close_session notifications occurrences);

our $timeout = $PostgreSQL::Test::Utils::timeout_default;    # seconds
my $poll = 30_000;                                           # µs

# conf: lines for postgresql.conf; preload => 0: without the library; extension => 0: without the
# extension; start => 0: only initialized; init: options for the node's init().
sub jobq_node
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(extra => [qw(--encoding=UTF8 --no-locale)], @{ $options{init} || [] });
	# The tests' own defaults log each statement, and do not restart after a crash.
	$node->append_conf('postgresql.conf',
		join("\n", 'log_statement = none', 'max_connections = 50', @{ $options{conf} || [] }) . "\n");
	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = 'jobq'\njobq.allow_networks = '127.0.0.1, ::1'\n")
	  if $options{preload} // 1;
	return $node unless $options{start} // 1;
	$node->start;
	if ($options{extension} // 1)
	{
		$node->safe_psql('postgres', 'CREATE EXTENSION jobq');
		dispatcher($node) if $options{preload} // 1;
	}
	return $node;
}

sub quoted
{
	my ($text) = @_;
	$text =~ s/'/''/g;
	return "'$text'";
}

# endpoint, queue: settings by their names in the tables; database: not postgres.
sub hook
{
	my ($node, $name, $url, %options) = @_;
	my ($endpoint, $queue) =
	  map { quoted(JSON::PP->new->canonical->encode($options{$_} || {})) } qw(endpoint queue);
	$node->safe_psql($options{database} // 'postgres', sprintf q{
		BEGIN;
		SELECT jobq.create_endpoint(%1$s, %2$s, options => %3$s);
		SELECT jobq.create_queue(%1$s, endpoint => %1$s, options => %4$s);
		COMMIT;}, quoted($name), quoted($url), $endpoint, $queue);
	return;
}

# Returns the id, or the ids of several.
sub push_job
{
	my ($node, $arguments, $database) = @_;
	return $node->safe_psql($database // 'postgres', "SELECT jobq.push($arguments)");
}

# A job's attempts in a line: "1 http_500, 2 completed".
sub story
{
	my ($node, $id) = @_;
	return $node->safe_psql('postgres', qq{
		SELECT string_agg(attempt || ' ' || coalesce(outcome, 'running'), ', ' ORDER BY attempt)
		FROM jobq.attempts WHERE id = '$id'});
}

sub state_of
{
	my ($node, $id) = @_;
	return $node->safe_psql('postgres', "SELECT state FROM jobq.jobs WHERE id = '$id'");
}

# What a query gives, and psql's errors. A server that is down, or a database that is gone, are states
# that whoever polls gets over.
sub ask
{
	my ($node, $database, $query) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr($database), '-c', $query ],
		'<', \undef, '>', \$out, '2>', \$err);
	chomp $out;
	return ($out, $err);
}

sub until_ok
{
	my ($check, $name, $seconds) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $until = time + ($seconds // $timeout);
	while (1)
	{
		return pass($name) if $check->();
		return fail($name) if time > $until;
		usleep($poll);
	}
}

# Options: database, seconds.
sub until_is
{
	my ($node, $query, $expected, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $until = time + ($options{seconds} // $timeout);
	my ($out, $err);
	while (1)
	{
		($out, $err) = ask($node, $options{database} // 'postgres', $query);
		last if $out eq $expected || time > $until;
		usleep($poll);
	}
	diag($err) if $err ne '' && $out ne $expected;
	return is($out, $expected, $name);
}

sub until_state
{
	my ($node, $id, $state, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_is($node, "SELECT state FROM jobq.jobs WHERE id = '$id'", $state, $name, %options);
}

# The pid of a database's running dispatcher; dies if there comes to be none. not: another one's pid.
sub dispatcher
{
	my ($node, %options) = @_;
	my $until = time + $timeout;
	while (1)
	{
		my $pid = dispatcher_pid($node, $options{database} // 'postgres');
		return $pid if $pid ne '' && $pid ne ($options{not} // '');
		die join "\n", 'no dispatcher runs:', ask($node, 'postgres', 'SELECT * FROM jobq.status()') if time > $until;
		usleep($poll);
	}
}

# The same, or '' at once.
sub dispatcher_pid
{
	my ($node, $database) = @_;
	my ($pid) = ask($node, $database, q{
		SELECT pid FROM jobq.status()
		WHERE component = 'dispatcher' AND database = current_database() AND state = 'running'});
	return $pid;
}

sub until_running
{
	my ($node, $database, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_is($node, q{
		SELECT state FROM jobq.status() WHERE database = current_database()}, 'running', $name,
		database => $database);
}

# An assertion: nothing is in flight, and nothing that was waits to be recorded.
sub until_idle
{
	my ($node, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return until_is($node, q{
		SELECT in_flight FROM jobq.status() WHERE database = current_database()}, 0, $name);
}

# A psql that stays connected; to be ended with close_session().
sub session
{
	my ($node, $database) = @_;
	my $session = $node->background_psql($database // 'postgres', on_error_stop => 0);
	$session->set_query_timer_restart;
	return $session;
}

sub close_session
{
	$_->quit for @_;
	return;
}

# The notifications that a session has heard since the last call: [channel, pid of the sender], ...
sub notifications
{
	my ($session) = @_;
	my $out = $session->query_safe('SELECT 1');
	my @heard;
	push @heard, [ $1, $2 ]
	  while $out =~ /^Asynchronous notification "([^"]*)".*received from server process with PID (\d+)/mg;
	return @heard;
}

# How often a pattern stands in the server's log, from an offset on.
sub occurrences
{
	my ($node, $pattern, $offset) = @_;
	return scalar(() = slurp_file($node->logfile, $offset // 0) =~ /$pattern/g);
}

1;
