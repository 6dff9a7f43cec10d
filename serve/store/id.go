package store

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// NewID returns an id for a verdict: a UUID of version 7. Those of one process sort
// about by time, which keeps the index of a database compact.
func NewID() string {
	var id [16]byte
	rand.Read(id[:]) // never fails
	now := uint64(time.Now().UnixMilli())
	binary.BigEndian.PutUint32(id[0:], uint32(now>>16))
	binary.BigEndian.PutUint16(id[4:], uint16(now))
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	text := hex.EncodeToString(id[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}
