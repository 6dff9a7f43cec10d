package inspection

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"slices"
)

// pictures holds the pictures of many images in a temporary file.
type pictures struct {
	file *os.File
	read []bool // [N], which images could be read
}

const pictureBytes = side*side + 24

func newPictures(scratch string, n int) (*pictures, error) {
	file, err := os.CreateTemp(scratch, "mlrbfn-pictures-*")
	if err != nil {
		return nil, err
	}
	// The name goes at once, so that nothing stays behind whatever happens.
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &pictures{file, make([]bool, n)}, nil
}

func (p *pictures) Close() error { return p.file.Close() }

func (p *pictures) has(i int) bool { return p.read[i] }

// any reports whether any image could be read.
func (p *pictures) any() bool { return slices.Contains(p.read, true) }

// put may be called from several goroutines, for different images.
func (p *pictures) put(i int, pic *picture) error {
	b := make([]byte, 0, pictureBytes)
	b = append(b, pic.Grey[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(pic.Width))
	b = binary.LittleEndian.AppendUint32(b, uint32(pic.Height))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(pic.Spread))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(pic.Detail))
	if _, err := p.file.WriteAt(b, int64(i)*pictureBytes); err != nil {
		return err
	}
	p.read[i] = true
	return nil
}

// at returns the picture of an image; nil if it could not be read.
func (p *pictures) at(i int) *picture {
	if !p.read[i] {
		return nil
	}
	var b [pictureBytes]byte
	if _, err := p.file.ReadAt(b[:], int64(i)*pictureBytes); err != nil {
		return nil
	}
	pic := &picture{
		Width: int(binary.LittleEndian.Uint32(b[side*side:])), Height: int(binary.LittleEndian.Uint32(b[side*side+4:])),
		Spread: math.Float64frombits(binary.LittleEndian.Uint64(b[side*side+8:])),
		Detail: math.Float64frombits(binary.LittleEndian.Uint64(b[side*side+16:])),
	}
	copy(pic.Grey[:], b[:])
	return pic
}
