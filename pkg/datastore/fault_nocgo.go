//go:build !cgo

package datastore

// faultOf knows nothing without cgo, and needs to know nothing: without cgo
// there is no SQLite and the datastore does not open. It is here so that the
// rest can be compiled and checked.
func faultOf(error) fault { return noFault }
