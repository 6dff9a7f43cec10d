//go:build !unix

package extractor

import "math"

// mostMapped returns how many bytes the process may map.
func mostMapped() int64 { return math.MaxInt64 }
