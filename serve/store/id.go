package store

import "github.com/google/uuid"

// NewID returns an id for a verdict: a UUID of version 7. Those of one process sort by
// time, which keeps the index of a database compact.
func NewID() string { return uuid.Must(uuid.NewV7()).String() } // which never fails
