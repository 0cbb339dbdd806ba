package payload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	binFolder  = "bin"
	lockName   = ".lock"
	markerName = ".complete"
	tempPrefix = ".tmp-"

	// durable in a marker says that the files were synced to the disk. Any
	// other content is the boot ID of the machine when they were written: until
	// it restarts, the page cache vouches for them, and the first start does
	// not have to wait for a slow disk to take 250 MB.
	durable = "durable"
)

// BinDir returns the folder that holds the programs of the version hash.
func BinDir(dataDir, hash string) string { return filepath.Join(dataDir, binFolder, hash) }

// Ensure returns the folder below dataDir that holds the unpacked, verified
// files of p, and unpacks them first when they are not there. Two processes may
// call it at once. progress, unless nil, is called while it unpacks.
//
// The returned lock keeps Prune away from the folder; it is released by Close
// or by an exec. It is nil for a user who may not lock, which is the case when
// root unpacked.
func (p *Payload) Ensure(ctx context.Context, dataDir string, progress func(done, total int64)) (dir string, lock *os.File, err error) {
	dir = BinDir(dataDir, p.Hash)
	lock, err = lockBin(dataDir, unix.LOCK_SH)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EROFS) {
		lock, err = nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	state := p.inspect(dir)
	if state == complete {
		return dir, lock, nil
	}
	if lock != nil {
		_ = lock.Close()
	}

	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", nil, cannotUnpack(filepath.Dir(dir), err)
	}
	lock, err = lockBin(dataDir, unix.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			_ = lock.Close()
			lock = nil
		}
	}()
	// Another process may have done it while this one waited for the lock.
	state = p.inspect(dir)
	if state == unsure && p.verify(dir) == nil && mark(dir, durable) == nil {
		state = complete
	}
	if state != complete {
		if err := p.replace(ctx, dir, progress); err != nil {
			return "", nil, err
		}
	}
	// Keep it, but no longer alone.
	return dir, lock, unix.Flock(int(lock.Fd()), unix.LOCK_SH)
}

// replace unpacks beside dir and then puts the result in its place in one step.
func (p *Payload) replace(ctx context.Context, dir string, progress func(done, total int64)) error {
	parent := filepath.Dir(dir)
	removeTemps(parent)
	if err := checkPlace(parent, p.Size()); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, tempPrefix)
	if err != nil {
		return cannotUnpack(parent, err)
	}
	defer os.RemoveAll(tmp)
	total := p.Size()
	report := func(done int64) {
		if progress != nil {
			progress(done, total)
		}
	}
	if err := p.unpack(ctx, tmp, report); err != nil {
		if errors.Is(err, ErrDamaged) || ctx.Err() != nil {
			return err
		}
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return noSpace(parent, total)
		}
		return cannotUnpack(parent, err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	vouch := bootID()
	if vouch == "" {
		if err := syncDir(tmp); err != nil {
			return err
		}
		vouch = durable
	}
	if err := mark(tmp, vouch); err != nil {
		return cannotUnpack(parent, err)
	}
	err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, dir, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		// What is there is broken; the deferred removal gets it after the swap.
		err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// A file system without these flags.
		_ = os.RemoveAll(dir)
		err = os.Rename(tmp, dir)
	}
	if err != nil {
		return fmt.Errorf("cannot put the unpacked files at %s: %w", dir, err)
	}
	return nil
}

type state int

const (
	broken state = iota
	unsure       // written before the machine restarted, perhaps not to the disk
	complete
)

// inspect says, without reading the files, whether dir holds what p describes.
func (p *Payload) inspect(dir string) state {
	marker, err := os.ReadFile(filepath.Join(dir, markerName))
	if err != nil {
		return broken
	}
	for _, f := range p.Files {
		st, err := os.Lstat(filepath.Join(dir, f.Name))
		if err != nil || !st.Mode().IsRegular() || st.Size() != f.Size || st.Mode().Perm() != f.Mode.Perm() || !trusted(st) {
			return broken
		}
	}
	switch vouch := strings.TrimSpace(string(marker)); {
	case vouch == durable, vouch != "" && vouch == bootID():
		return complete
	}
	return unsure
}

// trusted says whether a file can be executed without giving its owner more
// rights than they have: it belongs to root or to this user.
func trusted(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && (sys.Uid == 0 || int(sys.Uid) == os.Geteuid())
}

// Settle writes the files of the version hash to the disk and records that, so
// that the first start after a restart of the machine need not read them all.
// It is meant for the background of a running server; calling it again costs
// nothing.
func Settle(dataDir, hash string) error {
	dir := BinDir(dataDir, hash)
	if marker, err := os.ReadFile(filepath.Join(dir, markerName)); err != nil || strings.TrimSpace(string(marker)) == durable {
		return err
	}
	lock, err := lockBin(dataDir, unix.LOCK_SH)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syncDir(dir); err != nil {
		return err
	}
	return mark(dir, durable)
}

func mark(dir, vouch string) error {
	tmp := filepath.Join(dir, markerName+".new")
	if err := os.WriteFile(tmp, []byte(vouch+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, markerName))
}

func syncDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := syncPath(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return errors.Join(syncPath(dir), syncPath(filepath.Dir(dir)))
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// lockBin locks <dataDir>/bin. Only the owner can open the lock, so that no
// other user can hold it against an upgrade.
func lockBin(dataDir string, how int) (*os.File, error) {
	path := filepath.Join(dataDir, binFolder, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, cannotUnpack(filepath.Dir(path), err)
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	return f, nil
}

// removeTemps deletes what interrupted unpacks left; the caller holds the lock.
func removeTemps(parent string) {
	left, _ := filepath.Glob(filepath.Join(parent, tempPrefix+"*"))
	for _, dir := range left {
		_ = os.RemoveAll(dir)
	}
}

// checkPlace finds out before the work what would make it useless.
func checkPlace(dir string, need int64) error {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return nil
	}
	if st.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("cannot unpack to %s: its file system is mounted noexec, so nothing there can be started: mount it with exec or choose another place with --data-dir", dir)
	}
	if st.Blocks > 0 && int64(st.Bavail)*st.Bsize < need {
		return noSpace(dir, need)
	}
	return nil
}

func cannotUnpack(dir string, err error) error {
	return fmt.Errorf("cannot unpack to %s: %w: make it writable or choose another place with --data-dir", dir, cause(err))
}

func noSpace(dir string, need int64) error {
	free := ""
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil {
		free = ", " + Bytes(int64(st.Bavail)*st.Bsize) + " are free"
	}
	return fmt.Errorf("cannot unpack to %s: %w (%s are needed%s): free some space or choose another place with --data-dir", dir, unix.ENOSPC, Bytes(need), free)
}

// cause strips the path and operation that the os package puts before an
// error, where the sentence around it names them already.
func cause(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
