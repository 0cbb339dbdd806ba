package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/pkg/host"
)

// checkDataDir tries what Kombi will do: make the folder, write into it, and run programs from it.
func checkDataDir(_ context.Context, o *Options) []Finding {
	const other = "or choose another place with --data-dir"
	if info, err := os.Stat(o.DataDir); err == nil && !info.IsDir() {
		return fail("move it away, "+other, "the data directory %s is not a folder", o.DataDir)
	}
	at := host.Existing(o.DataDir)
	if host.Flags(at)&unix.ST_NOEXEC != 0 {
		m := o.Facts.Mounts.Of(at)
		return fail("run: mount -o remount,exec "+m.Point+", "+other,
			"the data directory %s is on %s, which is mounted noexec, so no program of a container could run", o.DataDir, m.Point)
	}
	if f := tryWrite("the data directory "+o.DataDir, at, other); f != nil {
		return f
	}
	free, files, err := host.Free(at)
	switch {
	case err != nil:
		return nil
	case free < o.NeedBytes:
		return fail("free some space there, "+other, "the data directory %s has only %d MB left, and a server needs %d MB",
			o.DataDir, free>>20, o.NeedBytes>>20)
	case files < 1000:
		return fail("remove some files there, "+other, "the file system of the data directory %s can hold only %d more files", o.DataDir, files)
	}
	return nil
}

func checkRunDir(_ context.Context, o *Options) []Finding {
	if o.RunDir == "" || strings.HasPrefix(o.RunDir, o.DataDir+"/") && host.Existing(o.RunDir) == host.Existing(o.DataDir) {
		return nil // the data directory has spoken for it
	}
	if info, err := os.Stat(o.RunDir); err == nil && !info.IsDir() {
		return fail("move it away, or choose another place with --run-dir", "the run directory %s is not a folder", o.RunDir)
	}
	return tryWrite("the run directory "+o.RunDir, host.Existing(o.RunDir), "or choose another place with --run-dir")
}

func checkKubeconfig(_ context.Context, o *Options) []Finding {
	const other = "or choose another place with --write-kubeconfig"
	if o.Kubeconfig == "" {
		return nil
	}
	if info, err := os.Stat(o.Kubeconfig); err == nil && info.IsDir() {
		return fail("move it away, "+other, "the kubeconfig %s is a folder", o.Kubeconfig)
	}
	return tryWrite("the folder of the kubeconfig "+o.Kubeconfig, host.Existing(filepath.Dir(o.Kubeconfig)), other)
}

// tryWrite makes and removes a file in the nearest folder that exists.
func tryWrite(what, dir, other string) []Finding {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return fail("move it away, "+other, "%s cannot be made: %s is not a folder", what, dir)
	}
	f, err := os.CreateTemp(dir, ".kombi-probe-")
	if err == nil {
		_, err = f.Write(make([]byte, 4096))
		err = errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EROFS):
		return fail("mount it writable, "+other, "%s is on a read-only file system", what)
	case errors.Is(err, unix.ENOSPC):
		return fail("free some space there, "+other, "%s is on a full file system", what)
	case errors.Is(err, unix.EDQUOT):
		return fail("raise the quota, "+other, "%s is over its disk quota", what)
	case errors.Is(err, fs.ErrPermission):
		return fail("look for an immutable flag (lsattr -d "+dir+") or a security policy, "+other, "%s cannot be written", what)
	}
	return fail("mend the file system, "+other, "%s cannot be written: %v", what, err)
}

// checkRunning looks whether a server holds the lock of the data directory.
func checkRunning(_ context.Context, o *Options) []Finding {
	if o.Lock == "" {
		return nil
	}
	f, err := os.Open(o.Lock)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	pid := make([]byte, 16)
	n, _ := f.Read(pid)
	return fail("stop it with: kombi stop --data-dir "+filepath.Dir(o.Lock)+", or give this one another --data-dir",
		"another Kombi (process %s) is running with the data directory %s", strings.TrimSpace(string(pid[:n])), filepath.Dir(o.Lock))
}
