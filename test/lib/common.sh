# shellcheck shell=bash disable=SC2034
# Shared by test/run, test/demo, test/bench/run and test/build-on; sourced by bash.
#
# The caller's own server is never touched: every cluster made here lives in $WORK, listens on a
# unix socket in $WORK and nowhere else, and is stopped and removed on every way out.

set -euo pipefail
umask 022 # a private umask would make the installed files unreadable to the server's user

# A caller's PGHOST, PGPORT, PGSERVICE... would send a test to somebody's real server.
# shellcheck disable=SC2046
unset $(compgen -v | grep -E '^PG[A-Z]+$') TEMP_CONFIG
# An outer make's flags and job server are not meant for the makes started here.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES GNUMAKEFLAGS
export LC_ALL=C.UTF-8

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
WORK=          # the temporary directory; everything of a run is in it
PG_BIN=        # the server's programs
PGXS_DIR=      # .../lib/pgxs
PG_OS_USER=    # who runs PostgreSQL when we are root
GROUP=         # process group of the step under way, see in_group
BACKGROUND=()  # process groups of what runs beside the steps
MAIN_CLUSTER_OFF=/etc/postgresql-common/createcluster.d/jobq-no-main-cluster.conf
LAST_LINE=     # what to print last of all, unless interrupted

if [[ -t 1 && ${TERM:-dumb} != dumb ]]; then
    BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' PLAIN=$'\e[0m'
else
    BOLD='' DIM='' RED='' PLAIN=''
fi

say() { printf '%s\n' "$BOLD$*$PLAIN"; }
warn() { printf '%s\n' "$RED$*$PLAIN" >&2; }

die() {
    warn "$*"
    exit 1
}

as_root() {
    if [[ $(id -u) == 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root, and there is no sudo: $*"
    fi
}

# ---- what the machine must have

# Prints the Debian packages whose content is missing. Looks for the content, not for the package,
# so that it is right on other systems too. $1: "test", "demo" or "bench".
missing_packages() {
    command -v make >/dev/null || echo make
    command -v node >/dev/null || echo nodejs
    local headers=(curl/curl.h libcurl4-openssl-dev fmt/format.h libfmt-dev openssl/hmac.h libssl-dev zlib.h zlib1g-dev)
    if [[ $1 == test ]]; then
        headers+=(doctest/doctest.h doctest-dev)
        command -v openssl >/dev/null || echo openssl
        perl -MTest::More -MTAP::Harness -MHTTP::Tiny -MJSON::PP -e 1 2>/dev/null || echo perl
        perl -MIPC::Run -e 1 2>/dev/null || echo libipc-run-perl
        /usr/bin/python3 -c 'import psycopg2' 2>/dev/null || echo python3-psycopg2
        command -v openssl >/dev/null || echo openssl
        command -v npm >/dev/null || echo npm
        command -v go >/dev/null || echo golang-go
    fi
    local i
    if ! command -v g++ >/dev/null; then
        echo g++
        for ((i = 1; i < ${#headers[@]}; i += 2)); do echo "${headers[i]}"; done
        return
    fi
    for ((i = 0; i < ${#headers[@]}; i += 2)); do
        printf '#if !__has_include(<%s>)\n%s\n#endif\n' "${headers[i]}" "${headers[i + 1]}"
    done | g++ -E -P -x c++ - | grep . || true
}

# True if $1 is the pg_config of a whole server with its build and test tools; sets PG_*.
use_pg_config() {
    local config pgxs
    config=$(command -v "$1") || return 1
    pgxs=$("$config" --pgxs 2>/dev/null) || return 1
    PG_BIN=$("$config" --bindir)
    PGXS_DIR=${pgxs%/src/makefiles/pgxs.mk}
    [[ -x $PG_BIN/postgres && -x $PG_BIN/initdb && -x $PG_BIN/psql && -f $pgxs ]] || return 1
    PG_CONFIG=$config
}

# PG_CONFIG as given; without one, the pg_config in PATH if it belongs to a whole server.
# "pg_config" is what the Makefile passes when nobody chose.
find_server() {
    case ${PG_CONFIG:=pg_config} in
        pg_config) use_pg_config pg_config || use_pg_config "$(debian_pg_config 15)" ;;
        *) use_pg_config "$PG_CONFIG" ;;
    esac
}

debian_pg_config() { echo "/usr/lib/postgresql/$1/bin/pg_config"; }

# The major version to install: the one asked for by PG_CONFIG, else the one whose development
# files are here, else 15, else what this release of Debian calls "postgresql".
debian_major() {
    local major
    major=$(sed -n 's,^/usr/lib/postgresql/\([0-9]*\)/bin/pg_config$,\1,p' <<<"$PG_CONFIG")
    [[ -n $major ]] || major=$(compgen -G "$(debian_pg_config '*')" | sort -V | tail -n 1 | grep -o '[0-9]*' || true)
    if [[ -z $major ]] && apt-cache show postgresql-15 >/dev/null 2>&1; then major=15; fi
    [[ -n $major ]] || major=$(apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p')
    echo "$major"
}

# An update may fail for one source out of several: whether it mattered shows in the install.
update_packages() {
    say "looking for what is missing"
    as_root apt-get -qq update </dev/null >"$WORK/log/apt.log" 2>&1 || true
}

# In the foreground, because sudo may ask for a password.
install_packages() {
    say "installing $* (this can take a minute or two)"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 \
        install --no-install-recommends "$@" </dev/null >>"$WORK/log/apt.log" 2>&1
}

# $1: "test", "demo" or "bench". Nothing runs and no network is needed when all is there.
prepare_machine() {
    local packages server=yes major
    mapfile -t packages < <(missing_packages "$1")
    find_server || server=no
    if [[ $server == no && $PG_CONFIG != pg_config && ! $PG_CONFIG =~ ^/usr/lib/postgresql/[0-9]+/bin/pg_config$ ]]; then
        die "PG_CONFIG=$PG_CONFIG is not the pg_config of a server with its development files (PGXS)"
    fi
    [[ $server == no || ${#packages[@]} -gt 0 ]] || return 0

    if ! command -v apt-get >/dev/null; then
        [[ $server == yes ]] || packages+=("PostgreSQL 15 or newer with its development files (or give PG_CONFIG=)")
        warn "not a Debian system: please install what these Debian packages hold, then try again:"
        printf '  %s\n' "${packages[@]}" >&2
        die "nothing was built"
    fi

    update_packages
    if [[ $server == no ]]; then
        major=$(debian_major)
        [[ -n $major ]] || die "apt knows no PostgreSQL server package"
        packages+=("postgresql-$major" "postgresql-server-dev-$major")
        no_main_cluster "$major"
    fi
    if ! install_packages "${packages[@]}"; then
        tail -n 30 "$WORK/log/apt.log"
        die "apt-get could not install them"
    fi
    main_cluster_as_before

    hash -r
    [[ $server == yes ]] || find_server || use_pg_config "$(debian_pg_config "$major")" ||
        die "PostgreSQL $major was installed but its pg_config does not work"
    mapfile -t packages < <(missing_packages "$1")
    [[ ${#packages[@]} == 0 ]] || die "installed, but not found: ${packages[*]}"
}

# Debian's package makes and starts a cluster "main" when it is first installed. Nobody asked for one.
no_main_cluster() {
    dpkg-query -W -f '${db:Status-Status}' "postgresql-$1" 2>/dev/null | grep -qx installed && return
    as_root mkdir -p "${MAIN_CLUSTER_OFF%/*}"
    echo 'create_main_cluster = false' | as_root tee "$MAIN_CLUSTER_OFF" >/dev/null
}

main_cluster_as_before() { [[ ! -e $MAIN_CLUSTER_OFF ]] || as_root rm -f "$MAIN_CLUSTER_OFF"; }

# ---- the temporary directory, and who owns it

# $1: a word for the directory's name; $2: where, /tmp without it. Short: a socket's path holds 107
# bytes. Not in TMPDIR: a private one would be closed to the server's user.
make_work() {
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 141' PIPE
    trap 'exit 143' TERM
    trap cleanup EXIT
    WORK=$(mktemp -d "${2:-/tmp}/jobq-$1.XXXXXX")
    mkdir "$WORK/log"
}

# Call when the packages are there: the user may have come with them.
own_work() {
    mkdir "$WORK/home" "$WORK/src" "$WORK/sock" "$WORK/tmp"
    # A copy, because the checkout may lie where the server's user cannot look.
    local part
    for part in sql expected test README.md; do
        [[ ! -e $ROOT/$part ]] || tar -C "$ROOT" --exclude=test/unit --exclude=test/log --exclude=node_modules -cf - "$part" |
            tar -C "$WORK/src" --no-same-owner -xf -
    done
    if [[ $(id -u) == 0 ]]; then
        for PG_OS_USER in postgres nobody ''; do
            if [[ -z $PG_OS_USER ]] || id "$PG_OS_USER" >/dev/null 2>&1; then break; fi
        done
        [[ -n $PG_OS_USER ]] || die "PostgreSQL does not run as root: this needs a user postgres or nobody"
        chown -R "$PG_OS_USER:" "$WORK"
    fi
    # The port only names the socket's file, and the directory is ours: any number is free.
    export PGHOST=$WORK/sock PGPORT=5432 PGUSER=postgres
    # The server's user works from here: it may not be allowed into the directory we came from.
    cd "$WORK"
}

# Runs a command as the user PostgreSQL runs as.
as_pg() {
    if [[ -n $PG_OS_USER ]]; then
        setpriv --reuid "$PG_OS_USER" --regid "$(id -g "$PG_OS_USER")" --init-groups \
            env HOME="$WORK/home" TMPDIR="$WORK/tmp" "$@"
    else
        env HOME="$WORK/home" TMPDIR="$WORK/tmp" "$@"
    fi
}

# ---- steps

# Runs a command or function in a process group of its own and waits for it. A shell runs its traps
# only between commands, but does interrupt `wait`: so Ctrl-C and TERM stop a long step at once, and
# cleanup can end all of it. Not for steps that may ask for a password: they need the terminal.
in_group() {
    local rc=0
    set -m
    "$@" </dev/null &
    GROUP=$!
    set +m
    wait "$GROUP" || rc=$?
    GROUP=
    return "$rc"
}

# The same, but beside the steps that follow; $! is its group.
in_background() {
    set -m
    "$@" </dev/null &
    set +m
    BACKGROUND+=("$!")
}

# True while something of a process group runs. Zombies do not count: where process 1 does not reap
# (some containers), they stay.
group_runs() {
    kill -0 -- "-$1" 2>/dev/null || return 1
    [[ -r /proc/self/stat ]] || return 0
    cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' |
        awk -v group="$1" '$3 == group && $1 != "Z" { found = 1 } END { exit !found }'
}

# Ends a process group: asks first, insists after 10 s (a TAP test stops its servers meanwhile).
end_group() {
    local tries
    kill -TERM -- "-$1" 2>/dev/null || return 0
    for ((tries = 0; tries < 100; tries++)); do
        group_runs "$1" || return 0
        sleep 0.1
    done
    kill -KILL -- "-$1" 2>/dev/null || true
}

# ---- build

build_and_install() {
    local version target stamp=$ROOT/.built-for
    version=$("$PG_CONFIG" --version)
    target="$version $PG_BIN"
    say "building for $version"
    # make sees only dates: objects compiled for another server would count as up to date.
    if [[ $(cat "$stamp" 2>/dev/null) != "$target" ]]; then
        in_group make -s -C "$ROOT" PG_CONFIG="$PG_CONFIG" clean >"$WORK/log/build.log" 2>&1 || true
    fi
    echo "$target" >"$stamp"
    if ! in_group make -C "$ROOT" -j "$(nproc)" PG_CONFIG="$PG_CONFIG" WERROR=-Werror >"$WORK/log/build.log" 2>&1; then
        tail -n 60 "$WORK/log/build.log"
        die "the build failed"
    fi
    if grep -E '(^|[^-])warning:' "$WORK/log/build.log"; then
        rm -f "$stamp" # the next run must compile, or it would not see the warning
        die "the build is not clean"
    fi
    install_extension
}

install_extension() {
    local libdir sharedir
    libdir=$("$PG_CONFIG" --pkglibdir)
    sharedir=$("$PG_CONFIG" --sharedir)/extension
    local install=(make -s -C "$ROOT" PG_CONFIG="$PG_CONFIG" install)
    say "installing into $libdir"
    [[ -w $libdir && -w $sharedir ]] || install=(as_root "${install[@]}")
    # Not through in_group: sudo may ask for a password.
    if ! "${install[@]}" >"$WORK/log/install.log" </dev/null; then
        cat "$WORK/log/install.log"
        die "make install failed"
    fi
}

# What the Makefile says for a variable, nothing if it says nothing.
make_variable() {
    make -s --no-print-directory -C "$ROOT" PG_CONFIG="$PG_CONFIG" \
        --eval="print-it: ; @echo \$($1)" print-it 2>/dev/null || true
}

# ---- the throwaway cluster

# Starts a cluster in $WORK/pg; the arguments are lines for its postgresql.conf.
start_cluster() {
    as_pg "$PG_BIN/initdb" -D "$WORK/pg" -U postgres -A trust -E UTF8 --no-locale -N \
        >"$WORK/log/initdb.log" 2>&1 || { cat "$WORK/log/initdb.log"; die "initdb failed"; }
    {
        echo "listen_addresses = ''"
        echo "unix_socket_directories = '$WORK/sock'"
        echo "unix_socket_permissions = 0700"
        echo "port = $PGPORT"
        echo "log_line_prefix = '%m [%p] %b %q%d '"
        printf '%s\n' "$@"
    } >>"$WORK/pg/postgresql.conf"
    # -w waits until it accepts connections. Its output must not go to ours: the server would keep
    # a pipe behind us open.
    if ! as_pg "$PG_BIN/pg_ctl" -D "$WORK/pg" -l "$WORK/log/server.log" -w -t 60 start >"$WORK/log/pg_ctl.log" 2>&1; then
        tail -n 30 "$WORK/log/server.log" || true
        die "the server did not start"
    fi
}

# Stops every server whose data directory is under $WORK, also one that a killed TAP test left.
stop_clusters() {
    local pidfile data
    while IFS= read -r pidfile; do
        data=${pidfile%/postmaster.pid}
        as_pg "$PG_BIN/pg_ctl" -D "$data" -m immediate -w -t 20 stop >/dev/null 2>&1 || true
    done < <(find "$WORK" -name postmaster.pid 2>/dev/null)
}

# ---- the way out

# What a script wants shown when something failed; it may define its own.
show_failure() { :; }

# Removes everything, keeps the logs if something failed (not after a signal), says the last line.
cleanup() {
    local rc=$? group
    trap - EXIT
    trap '' HUP INT PIPE TERM # a second Ctrl-C must not leave half of it behind
    set +e
    cd /
    for group in $GROUP "${BACKGROUND[@]}"; do end_group "$group"; done
    main_cluster_as_before
    [[ -z $PG_BIN ]] || stop_clusters
    if ((rc > 0 && rc < 128)); then
        show_failure
        keep_logs
    fi
    rm -rf "$WORK"
    if [[ -n $LAST_LINE ]] && ((rc < 128)); then echo "$LAST_LINE"; fi
    exit "$rc"
}

keep_logs() {
    local kept=$ROOT/test/log
    rm -rf "$kept"
    mkdir -p "$kept" && cp -R "$WORK/log/." "$kept/" && echo "the logs are kept in $kept"
}
