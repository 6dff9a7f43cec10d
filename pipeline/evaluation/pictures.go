package evaluation

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
	name string // of the file, if it is to be removed yet
	read []bool // [N], which images could be read
}

const pictureBytes = side*side + 24

func newPictures(scratch string, n int) (*pictures, error) {
	file, err := os.CreateTemp(scratch, "mlrbfn-pictures-*")
	if err != nil {
		return nil, err
	}
	p := &pictures{file: file, read: make([]bool, n)}
	// The name goes at once, so that nothing stays behind whatever happens.
	if os.Remove(file.Name()) != nil { // an open file on Windows
		p.name = file.Name()
	}
	return p, nil
}

func (p *pictures) Close() error {
	err := p.file.Close()
	if p.name != "" {
		err = errors.Join(err, os.Remove(p.name))
	}
	return err
}

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
