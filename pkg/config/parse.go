package config

import (
	"io/fs"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"net"
	"net/url"
)

// The parsers turn the text of one value into its type, or return a *Problem without a place.

func anyText(s string) (string, error) { return s, nil }

func absPath(s string) (string, error) {
	switch {
	case s == "":
		return "", complain("give an absolute path, or leave the key out", "the path is empty")
	case strings.ContainsRune(s, 0) || strings.ContainsRune(s, '\n'):
		return "", complain("give a plain path", "%q holds a control character", s)
	case !filepath.IsAbs(s):
		return "", complain("give an absolute path", "%q is a relative path", s)
	}
	return filepath.Clean(s), nil
}

func fileMode(s string) (fs.FileMode, error) {
	mode, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	const next = "give three octal digits such as 0600 or 0640"
	switch {
	case err != nil:
		return 0, complain(next, "%q is not a file mode", s)
	case mode > 0o777 || mode&0o111 != 0:
		return 0, complain(next, "%q is not the mode of a file that is only read and written", s)
	case mode&0o400 == 0:
		return 0, complain(next, "with mode %q the owner cannot read the file", s)
	case mode&0o002 != 0:
		return 0, complain(next, "with mode %q everybody can change the file", s)
	}
	return fs.FileMode(mode), nil
}

func port(s string) (int, error) { return intIn(s, 1, 65535, "a port") }

func intBetween(low, high int) func(string) (int, error) {
	return func(s string) (int, error) { return intIn(s, low, high, "a number") }
}

func intIn(s string, low, high int, what string) (int, error) {
	n, err := strconv.Atoi(s)
	next := "give a whole number from " + strconv.Itoa(low) + " to " + strconv.Itoa(high)
	switch {
	case err != nil:
		return 0, complain(next, "%q is not %s", s, what)
	case n < low || n > high:
		return 0, complain(next, "%d is out of range", n)
	}
	return n, nil
}

func boolean(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, complain("give true or false", "%q is not true or false", s)
}

func oneOf(allowed ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		for _, a := range allowed {
			if s == a {
				return s, nil
			}
		}
		next := "give one of " + strings.Join(allowed, ", ")
		if near := Suggest(s, allowed); near != "" {
			next = "did you mean " + near + "? " + next
		}
		return "", complain(next, "%q is not known", s)
	}
}

// serverURL reads https://HOST:PORT; the port is 6443 unless it is given.
func serverURL(s string) (string, error) {
	const next = "write it like https://192.0.2.1:6443"
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https":
		return "", complain(next, "%q is not the URL of a server", s)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil:
		return "", complain(next, "%q holds more than the address of a server", s)
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "6443")
	}
	return "https://" + u.Host, nil
}

func portRange(s string) (PortRange, error) {
	const next = "give two ports such as 30000-32767"
	first, last, found := strings.Cut(s, "-")
	if !found {
		return PortRange{}, complain(next, "%q is not a range of ports", s)
	}
	var r PortRange
	var err1, err2 error
	r.First, err1 = port(strings.TrimSpace(first))
	r.Last, err2 = port(strings.TrimSpace(last))
	switch {
	case err1 != nil || err2 != nil:
		return PortRange{}, complain(next, "%q is not a range of ports", s)
	case r.First > r.Last:
		return PortRange{}, complain("write "+PortRange{r.Last, r.First}.String(), "the range %s ends before it begins", s)
	}
	return r, nil
}

func dnsName(s string) (string, error) {
	if strings.ToLower(s) != s {
		return "", complain("write "+strings.ToLower(s), "%q has capitals, which DNS names in Kubernetes may not have", s)
	}
	if errs := validation.IsDNS1123Subdomain(s); len(errs) > 0 {
		return "", complain("use lower-case letters, digits, '-' and '.', at most 253 characters", "%q is not a DNS name", s)
	}
	return s, nil
}

// nodeName refuses capitals where the kubelet would quietly change them: a name that was typed should be the name
// that kubectl shows.
func nodeName(s string) (string, error) {
	if lower := strings.ToLower(s); lower != s {
		return "", complain("write "+lower, "%q has capitals, which the name of a node may not have", s)
	}
	name, err := dnsName(s)
	if err == nil && len(s) > validation.DNS1123LabelMaxLength {
		// The name becomes a label value (kubernetes.io/hostname).
		err = complain("choose a name of at most 63 characters", "%q is %d characters long", s, len(s))
	}
	return name, err
}

func hostOrAddr(s string) (string, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.String(), nil
	}
	name := strings.ToLower(s)
	if len(validation.IsDNS1123Subdomain(name)) > 0 && len(validation.IsWildcardDNS1123Subdomain(name)) > 0 {
		return "", complain("give a name such as kombi.example.org or an address, without scheme and port", "%q is not a host name or address", s)
	}
	return name, nil
}

func tokenRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._:-", r)
}

func token(s string) (string, error) {
	const next = "use 16 or more letters, digits, '.', '_', ':' and '-', for example from: openssl rand -hex 32"
	for _, r := range s {
		if !tokenRune(r) {
			return "", complain(next, "the token holds the character %q", r)
		}
	}
	if len(s) < 16 {
		return "", complain(next, "the token has only %d characters, so it can be guessed", len(s))
	}
	return s, nil
}

func cgroupPath(s string) (string, error) {
	if s == "auto" {
		return s, nil
	}
	if !strings.HasPrefix(s, "/") || s == "/" || filepath.Clean(s) != s {
		return "", complain("give auto or a path such as /kombi", "%q is not the path of a cgroup below the root", s)
	}
	return s, nil
}

func nodeLabel(s string) (string, error) {
	key, val, found := strings.Cut(s, "=")
	if !found {
		return "", complain("write "+s+"=<value>", "the label %q has no value", s)
	}
	if errs := validation.IsQualifiedName(key); len(errs) > 0 {
		return "", complain("use a key such as example.org/zone", "%q is not the key of a label: %s", key, errs[0])
	}
	if errs := validation.IsValidLabelValue(val); len(errs) > 0 {
		return "", complain("use at most 63 letters, digits, '-', '_' and '.'", "%q is not the value of a label", val)
	}
	return s, nil
}

func nodeTaint(s string) (string, error) {
	const next = "write key=value:NoSchedule, :PreferNoSchedule or :NoExecute"
	body, effect, found := strings.Cut(s, ":")
	if !found {
		return "", complain(next, "the taint %q has no effect", s)
	}
	switch corev1.TaintEffect(effect) {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		return "", complain(next, "%q is not the effect of a taint", effect)
	}
	key, val, _ := strings.Cut(body, "=")
	if errs := validation.IsQualifiedName(key); len(errs) > 0 {
		return "", complain(next, "%q is not the key of a taint", key)
	}
	if errs := validation.IsValidLabelValue(val); len(errs) > 0 {
		return "", complain(next, "%q is not the value of a taint", val)
	}
	return s, nil
}

// componentArg accepts name=value, with or without leading dashes; a name alone means name=true.
func componentArg(s string) (string, error) {
	s = strings.TrimLeft(s, "-")
	name, _, found := strings.Cut(s, "=")
	if name == "" || strings.ContainsAny(name, " \t:") {
		return "", complain("write name=value", "%q is not an option", s)
	}
	if !found {
		s += "=true"
	}
	return s, nil
}
