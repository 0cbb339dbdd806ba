package main

import "golang.org/x/sys/unix"

// onTmpfs says whether a folder is in memory, where writes reach no disk.
func onTmpfs(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}
