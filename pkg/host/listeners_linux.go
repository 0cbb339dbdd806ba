package host

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Listener is a listening TCP socket and the process that holds it.
type Listener struct {
	Address netip.AddrPort
	PID     int    // 0 when the process cannot be seen: another namespace, or no right to look
	Command string // its name as in ps
}

// String is "nginx (process 812)", for sentences.
func (l Listener) String() string {
	if l.PID == 0 {
		return "a process that cannot be seen from here"
	}
	return fmt.Sprintf("%s (process %d)", l.Command, l.PID)
}

// Listeners finds who listens on the TCP port. proc is normally /proc.
func Listeners(proc string, port int) ([]Listener, error) {
	inodes := map[string]netip.AddrPort{}
	for _, file := range []string{"net/tcp", "net/tcp6"} {
		f, err := os.Open(filepath.Join(proc, file))
		if err != nil {
			continue // no IPv6
		}
		s := bufio.NewScanner(f)
		for s.Scan() {
			if addr, inode, ok := parseListener(s.Text()); ok && int(addr.Port()) == port {
				inodes[inode] = addr
			}
		}
		_ = f.Close()
		if err := s.Err(); err != nil {
			return nil, err
		}
	}
	if len(inodes) == 0 {
		return nil, nil
	}
	found := map[string]Listener{}
	links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			continue // the process or the file is gone
		}
		inode := strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")
		addr, ours := inodes[inode]
		if !ours || found[inode].PID != 0 {
			continue
		}
		dir := filepath.Dir(filepath.Dir(link))
		pid, _ := strconv.Atoi(filepath.Base(dir))
		found[inode] = Listener{Address: addr, PID: pid, Command: readWord(filepath.Join(dir, "comm"))}
	}
	var out []Listener
	for inode, addr := range inodes {
		l, ok := found[inode]
		if !ok {
			l = Listener{Address: addr}
		}
		out = append(out, l)
	}
	return out, nil
}

// parseListener reads one line of /proc/net/tcp or tcp6; ok is false for anything but a listening socket.
func parseListener(line string) (addr netip.AddrPort, inode string, ok bool) {
	const listening = "0A"
	f := strings.Fields(line)
	if len(f) < 10 || f[3] != listening {
		return addr, "", false
	}
	host, port, found := strings.Cut(f[1], ":")
	raw, err := hex.DecodeString(host)
	number, err2 := strconv.ParseUint(port, 16, 16)
	if !found || err != nil || err2 != nil || len(raw)%4 != 0 {
		return addr, "", false
	}
	for i := 0; i < len(raw); i += 4 { // words of the kernel's byte order
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	ip, valid := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(ip.Unmap(), uint16(number)), f[9], valid
}
