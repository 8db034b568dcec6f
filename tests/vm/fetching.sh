# fetching.sh (sourced): Debian packages of any suite from the mirror that the host's own
# apt uses, into the cache, with nothing installed and no host state touched.
# The sourcing script sets `prog` and, before configure_apt, `suite`.

PATH=$PATH:/sbin:/usr/sbin

fail() { echo "$prog: $*" >&2; exit 1; }

need_tools() {
    local tool
    for tool in "$@"; do
        [ -n "$(command -v "$tool")" ] || fail "$tool is missing: run scripts/setup"
    done
}

# lock NAME: one run at a time builds cache entry NAME; held until the script ends.
lock() {
    exec 9> "$cache/$1.lock"
    flock -w 1800 9 || fail "another run has held $cache/$1.lock for 30 minutes"
}

cache_dir() {
    local dir
    for dir in "${SIGMA_CACHE:-/var/cache/sigmatrace}" "${HOME:-/nonexistent}/.cache/sigmatrace"; do
        if mkdir -p "$dir" 2>/dev/null && [ -w "$dir" ]; then
            echo "$dir"
            return
        fi
    done
    fail "no writable cache folder: set SIGMA_CACHE"
}

# The URI that the host's own apt uses for Debian ("" = main archive, "-security").
mirror() {
    if [ -n "${SIGMA_DEBIAN_MIRROR:-}" ] && [ -z "$1" ]; then
        echo "$SIGMA_DEBIAN_MIRROR"
        return
    fi
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v release="^(bookworm|trixie|forky)$1\$" '$2 ~ release && $3 == "main" { print $1; exit }'
}

write_sources() {
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg uri
    [ -r $keyring ] || fail "$keyring is missing: install debian-archive-keyring"
    uri=$(mirror "")
    [ -n "$uri" ] || fail "the apt configuration names no Debian mirror: set SIGMA_DEBIAN_MIRROR to one"
    echo "deb [arch=amd64 signed-by=$keyring] $uri $suite main"
    case $suite in *-backports | sid) return ;; esac  # have no security suite beside them
    uri=$(mirror -security)
    [ -z "$uri" ] || echo "deb [arch=amd64 signed-by=$keyring] $uri $suite-security main"
}

# apt with its own sources, lists and cache: the host's package state is neither read nor changed.
configure_apt() {
    local dir=$1
    mkdir -p "$dir"/lists/partial "$dir"/cache/archives/partial
    : > "$dir/status"
    write_sources > "$dir/sources.list"
    cat > "$dir/apt.conf" <<CONF
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
APT::Update::Post-Invoke "";
Acquire::Languages "none";
Acquire::Retries "5";
Dir::Etc::SourceList "$dir/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::Lists "$dir/lists";
Dir::State::status "$dir/status";
Dir::Cache "$dir/cache";
CONF
    export APT_CONFIG=$dir/apt.conf
}

retry() {
    local try
    for try in 1 2 3 4; do
        "$@" >&2 && return 0
        echo "$prog: '$*' failed (try $try)" >&2
        sleep $((try * 5))
    done
    fail "'$*' failed"
}
