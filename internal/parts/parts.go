// Package parts has what all things have in common that processes make in parts, one for
// each shard: how parts are named, claimed, made, finished and looked at. A part lies in a
// folder, and names begin alike whatever it is of:
//
//	part-00001-of-00008…           what was made: a folder, or a file and its record
//	part-00001-of-00008.partial/   the work of a run, see [Claim]
//	part-00001-of-00008.progress   how far it has come, see [State]
package parts

import (
	"bytes"
	"encoding/json"
	"errors"
)

// ErrDamaged says that a file or object is not as it was written, or is missing.
var ErrDamaged = errors.New("damaged data")

// JSON writes a value as a small file has it.
func JSON(v any) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(v); err != nil {
		panic(err) // of strings and numbers
	}
	return text.Bytes()
}
