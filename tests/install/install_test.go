// Package install tests install.sh and what it leaves on a machine, with a
// stand-in for the main program, in namespaces in which nothing else is touched.
package install

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func script(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../install.sh")
	must(t, err)
	return path
}

func TestInstallUpgradeAndUninstallWithoutAnInitSystem(t *testing.T) {
	m := newMachine(t)
	m.ok("ln -s /bin/true /usr/local/bin/crictl") // somebody else's stays
	install := "sh " + script(t)
	one, two := kombi(t, "v0.0.1"), kombi(t, "v0.0.2")

	out := m.ok(install+` server --node-label "a=b c"`, "INSTALL_KOMBI_BIN="+one, `KOMBI_TOKEN=s3"cret$x`)
	for _, want := range []string{"installed /usr/local/bin/kombi: v0.0.1", "the node is ready", "next: sudo kombi kubectl get nodes", "kombi supervise start"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the output", want)
		}
	}
	started := m.file("/var/lib/kombi/server/starts")
	if !strings.HasPrefix(started, "v0.0.1 ") || !strings.HasSuffix(started, ` "a=b c" s3"cret$x`+"\n") {
		t.Errorf("start record %q", started)
	}
	if got := m.ok("stat -c '%a %n' /usr/local/bin/kombi /etc/kombi/supervise/* /var/log/kombi.log; readlink /usr/local/bin/crictl"); got !=
		"755 /usr/local/bin/kombi\n600 /etc/kombi/supervise/kombi.args\n600 /etc/kombi/supervise/kombi.env\n600 /var/log/kombi.log\n/bin/true\n" {
		t.Errorf("files:\n%s", got)
	}

	// This machine may have a kubectl of its own, in a folder that the test has not emptied.
	if got := m.ok("command -v kubectl"); got == "/usr/local/bin/kubectl\n" {
		m.ok("test $(readlink /usr/local/bin/kubectl) = kombi")
	}

	out = m.ok(install, "INSTALL_KOMBI_BIN="+one)
	if !strings.Contains(out, "nothing changed") || m.file("/var/lib/kombi/server/starts") != started {
		t.Error("a second run with the same file is not quiet")
	}

	pod := m.file("/var/lib/kombi/server/pod")
	out = m.ok(install, "INSTALL_KOMBI_BIN="+two, "KOMBI_DEBUG=true")
	if !strings.Contains(out, "upgraded /usr/local/bin/kombi: v0.0.2") {
		t.Error("no upgrade")
	}
	starts := strings.SplitAfter(strings.TrimSpace(m.file("/var/lib/kombi/server/starts")), "\n")
	if last := starts[len(starts)-1]; len(starts) != 2 || !strings.HasPrefix(last, "v0.0.2 ") || !strings.HasSuffix(last, ` "a=b c" s3"cret$x`) {
		t.Errorf("starts %q: flags or environment were not kept", starts)
	}
	m.ok("kill -0 " + pod) // pods go on

	m.ok("kombi supervise status")
	m.ok("kombi supervise stop && ! kombi supervise status && kombi supervise start && kombi supervise start && kombi status --wait 10s")
	// The supervisor starts what was killed.
	m.ok("kill -9 $(pidof -s kombi -o $(cat /run/kombi.pid)) && kombi status --wait 10s")

	m.ok("kombi uninstall --yes")
	if got := m.ok("ls -A /usr/local/bin /var/lib/kombi /run/kombi /etc/kombi /var/log /run 2>&1 || true"); strings.Contains(got, "\nkombi") || !strings.Contains(got, "crictl") {
		t.Errorf("left:\n%s", got)
	}
	if _, err := m.run("pidof kombi"); err == nil {
		t.Error("processes are left")
	}
}

func TestEveryFailureSaysWhyAndLeavesNothing(t *testing.T) {
	m := newMachine(t)
	good := kombi(t, "v0.0.1")
	content, err := os.ReadFile(good)
	must(t, err)
	truncated := filepath.Join(t.TempDir(), "kombi")
	must(t, os.WriteFile(truncated, content[:len(content)/2+1_000_000], 0o755))
	page := filepath.Join(t.TempDir(), "kombi")
	must(t, os.WriteFile(page, []byte("<html>404</html>\n"), 0o755))

	for _, tt := range []struct {
		name, command, want string
		env                 []string
	}{
		{"no such file", "", "INSTALL_KOMBI_BIN names /none", []string{"INSTALL_KOMBI_BIN=/none"}},
		{"truncated", "", "this kombi file is damaged (payload is", []string{"INSTALL_KOMBI_BIN=" + truncated}},
		{"a web page", "", "does not run here", []string{"INSTALL_KOMBI_BIN=" + page}},
		{"unknown command", "serve", "give server or agent", []string{"INSTALL_KOMBI_BIN=" + good}},
		{"bad name", "", "INSTALL_KOMBI_NAME may have", []string{"INSTALL_KOMBI_BIN=" + good, "INSTALL_KOMBI_NAME=a b"}},
		{"bad timeout", "", "give a number of seconds", []string{"INSTALL_KOMBI_BIN=" + good, "INSTALL_KOMBI_TIMEOUT=5m"}},
		{"no network", "", "cannot be downloaded", []string{"INSTALL_KOMBI_URL=http://127.0.0.1:1"}},
		{"read-only folder", "", "", []string{"INSTALL_KOMBI_BIN=" + good, "INSTALL_KOMBI_BIN_DIR=/proc/x"}},
		{"variable with two lines", "", "KOMBI_TOKEN has more than one line", []string{"INSTALL_KOMBI_BIN=" + good, "KOMBI_TOKEN=a\nb"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := m.run("sh "+script(t)+" "+tt.command, tt.env...)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if last := lines[len(lines)-1]; err == nil || !strings.HasPrefix(last, "install.sh: ") || !strings.Contains(last, tt.want) {
				t.Errorf("%v, last line %q", err, last)
			}
			if left := m.ok("ls -A /usr/local/bin /etc/kombi 2>/dev/null || true"); strings.Contains(left, "kombi") && !strings.HasPrefix(left, "/usr/local/bin:\n\n") && left != "/usr/local/bin:\n" {
				t.Errorf("left:\n%s", left)
			}
		})
	}
}

func TestAServiceThatFailsIsReportedWithItsOwnReason(t *testing.T) {
	m := newMachine(t)
	out, err := m.run("sh "+script(t), "INSTALL_KOMBI_BIN="+kombi(t, "v0.0.1"), "KOMBI_STANDIN_FAILS=port 6443 is in use by nginx: stop it", "INSTALL_KOMBI_TIMEOUT=60")
	if err == nil || !strings.Contains(out, "Kombi is installed, but it ended 3 times: port 6443 is in use by nginx: stop it") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDownloadChecksTheSum(t *testing.T) {
	m := newMachine(t)
	file := kombi(t, "v0.0.1")
	content, err := os.ReadFile(file)
	must(t, err)
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	sums := sum + "  kombi\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/release/kombi":
			_, _ = w.Write(content)
		case "/release/SHA256SUMS":
			_, _ = w.Write([]byte(sums))
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	install := "cat " + script(t) + " | sh -s - server"
	env := []string{"INSTALL_KOMBI_URL=" + server.URL + "/release/", "no_proxy=127.0.0.1"}

	sums = strings.Repeat("0", 64) + "  kombi\n"
	if out, err := m.run(install, env...); err == nil || !strings.Contains(out, "does not have the checksum") {
		t.Errorf("a wrong sum: %v\n%s", err, out)
	}
	m.ok("! test -e /usr/local/bin/kombi")
	sums = sum + "  kombi\n" + strings.Repeat("0", 64) + "  kombi-arm64\n"
	m.ok(install, env...)
	m.ok("kombi status")
}

// fakeSystemd answers like a machine that runs systemd; calls go to /run/calls.
const fakeSystemd = `mkdir -p /run/systemd/system
cat >/usr/local/bin/systemctl <<'E'
#!/bin/sh
echo "$*" >>/run/calls
case $1 in
is-active) test -e /run/active ;;
start) touch /run/active; set -- $(sed -n 's/^ExecStart=//p' /etc/systemd/system/kombi.service); "$@" >/dev/null 2>&1 & ;;
esac
E
chmod +x /usr/local/bin/systemctl`

func TestSystemdUnit(t *testing.T) {
	m := newMachine(t)
	m.ok(fakeSystemd)
	file := kombi(t, "v0.0.1")
	m.ok("sh "+script(t), "INSTALL_KOMBI_BIN="+file)
	unit := m.file("/etc/systemd/system/kombi.service")
	want, err := os.ReadFile("../../contrib/systemd/kombi.service")
	must(t, err)
	if unit != string(want) {
		t.Errorf("the unit is not contrib/systemd/kombi.service:\n%s", unit)
	}
	if calls := m.file("/run/calls"); calls != "daemon-reload\nenable kombi.service\nstop kombi.service\nstart --no-block kombi.service\n" {
		t.Errorf("calls:\n%s", calls)
	}
	if _, err := exec.LookPath("systemd-analyze"); err == nil {
		if out, err := m.run("systemd-analyze verify /etc/systemd/system/kombi.service 2>&1 | grep kombi"); err == nil {
			t.Errorf("systemd says: %s", out)
		}
	}
	if mode := m.ok("stat -c %a /etc/systemd/system/kombi.service.env"); mode != "600\n" {
		t.Errorf("environment file has mode %s", mode)
	}

	// An upgrade keeps flags; new flags replace them, quoted for systemd.
	m.ok("sh "+script(t)+` --node-label 'p=100% $HOME'`, "INSTALL_KOMBI_BIN="+file, "INSTALL_KOMBI_SKIP_START=true")
	for range 2 {
		if unit := m.file("/etc/systemd/system/kombi.service"); !strings.Contains(unit, "ExecStart=/usr/local/bin/kombi server --node-label 'p=100%% $$HOME'\n") {
			t.Errorf("unit:\n%s", unit)
		}
		m.ok("sh "+script(t), "INSTALL_KOMBI_BIN="+file, "INSTALL_KOMBI_SKIP_ENABLE=true")
	}

	m.ok("sh "+script(t), "INSTALL_KOMBI_BIN="+file, "INSTALL_KOMBI_SKIP_START=true", "KOMBI_SERVER=https://10.0.0.1:6443", "KOMBI_TOKEN=t")
	if unit := m.file("/etc/systemd/system/kombi-agent.service"); !strings.Contains(unit, "ExecStart=/usr/local/bin/kombi agent\n") {
		t.Errorf("unit of the agent:\n%s", unit)
	}
	m.ok("sh "+script(t), "INSTALL_KOMBI_BIN="+file, "INSTALL_KOMBI_SKIP_START=true", "INSTALL_KOMBI_NAME=two", "INSTALL_KOMBI_EXEC=server --data-dir /srv/two", "INSTALL_KOMBI_TYPE=exec")
	if unit := m.file("/etc/systemd/system/kombi-two.service"); !strings.Contains(unit, "server --data-dir /srv/two\n") || !strings.Contains(unit, "Type=exec\n") {
		t.Errorf("unit with a name:\n%s", unit)
	}

	// The first one goes, the shared file stays for the others.
	m.ok("kombi uninstall --yes")
	m.ok("test ! -e /etc/systemd/system/kombi.service && test ! -e /etc/systemd/system/kombi.service.env && test ! -e /var/lib/kombi")
}

func TestOpenRC(t *testing.T) {
	m := newMachine(t)
	m.ok(`mkdir -p /run/openrc
for tool in openrc-run rc-service rc-update; do printf '#!/bin/sh\necho "${0##*/} $*" >>/run/calls\n' >/usr/local/bin/$tool; chmod +x /usr/local/bin/$tool; done`)
	file := kombi(t, "v0.0.1")
	m.ok("sh "+script(t)+` server`, "INSTALL_KOMBI_BIN="+file, "INSTALL_KOMBI_SKIP_START=true", "KOMBI_TOKEN=a b")
	got := m.file("/etc/init.d/kombi")
	want, err := os.ReadFile("../../contrib/openrc/kombi")
	must(t, err)
	if got != string(want) {
		t.Errorf("the script is not contrib/openrc/kombi:\n%s", got)
	}
	if env := m.file("/etc/conf.d/kombi"); env != "export KOMBI_TOKEN=\"a b\"\n" {
		t.Errorf("environment:\n%s", env)
	}
	m.ok("sh "+script(t)+` server --node-label 'a="b c"'`, "INSTALL_KOMBI_BIN="+file, "INSTALL_KOMBI_SKIP_START=true")
	m.ok("sh "+script(t), "INSTALL_KOMBI_BIN="+file, "INSTALL_KOMBI_SKIP_START=true")
	// supervise-daemon splits the words with eval.
	if got := m.ok(`. /etc/init.d/kombi; eval "printf '%s|' $command_args"`); got != `server|--node-label|a="b c"|` {
		t.Errorf("arguments %s", got)
	}
	m.ok("kombi uninstall --yes && test ! -e /etc/init.d/kombi && test ! -e /etc/conf.d/kombi && test ! -e /usr/local/bin/kombi")
}
