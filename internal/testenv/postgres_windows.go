package testenv

import (
	"errors"
	"testing"
)

// Postgres is a PostgreSQL server of a test.
type Postgres struct{ URL string }

// StartPostgres skips the test: PostgreSQL is started on Unix alone.
func StartPostgres(tb testing.TB) *Postgres {
	tb.Helper()
	Missing(tb, "postgres", "run the test on Unix", errors.ErrUnsupported)
	return nil
}
