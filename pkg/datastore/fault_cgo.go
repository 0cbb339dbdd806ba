//go:build cgo

package datastore

import (
	"errors"

	"github.com/mattn/go-sqlite3"
	"golang.org/x/sys/unix"
)

func faultOf(err error) fault {
	var failed sqlite3.Error
	if !errors.As(err, &failed) {
		return noFault
	}
	switch {
	case failed.Code == sqlite3.ErrFull || failed.SystemErrno == unix.ENOSPC:
		return diskFull
	case failed.Code == sqlite3.ErrCorrupt || failed.Code == sqlite3.ErrNotADB:
		return fileDamaged
	case failed.Code == sqlite3.ErrIoErr || failed.Code == sqlite3.ErrReadonly:
		return diskFails
	case failed.Code == sqlite3.ErrConstraint:
		return refused
	}
	return otherFault
}
