package datastore

// fault is what an error of SQLite says about the disk.
type fault int

const (
	noFault     fault = iota // not an error of SQLite
	refused                  // the statement broke a rule of the table, as a second create of a key does
	diskFull                 // no space left
	diskFails                // the disk cannot be read or written
	fileDamaged              // the file is not what was written
	otherFault               // anything else that SQLite reports
)
