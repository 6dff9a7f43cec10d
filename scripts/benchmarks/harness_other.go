//go:build !unix

package main

import (
	"os"
	"time"
)

// processTime is not known on this system.
func processTime() time.Duration { return 0 }

// peak is not known on this system.
func peak(*os.ProcessState) int64 { return 0 }
