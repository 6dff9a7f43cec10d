package main

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"hash/crc32"
)

// side is that of images: just below the pixels that a service takes by default.
const side = 7000

// image is a hostile one.
type image struct {
	name string
	data []byte
}

// images are small files that take as much time or memory to decode as they can.
func images() []image {
	eobs := func(first, last, bits byte, n int) []byte { // a scan of runs of blocks without coefficients
		var b bits8
		for range n {
			b.put(0, 1)       // the only code: a run of 2¹⁴ and more blocks
			b.put(0x3fff, 14) // of 32,767
		}
		return scan(first, last, bits, b.bytes())
	}
	repeat := func(one []byte, n int) []byte { return bytes.Repeat(one, n) }
	dc := scan(0, 0, 0, make([]byte, side*side/64/8))
	refined := eobs(1, 63, 0x10, 24)
	noise := make([]byte, 16<<20) // PackBits that say nothing
	for i := range noise {
		noise[i] = 0x80
	}
	return []image{
		{"jpeg, 300 scans", jpeg(0xc2, side, 1, concat(dc, eobs(1, 63, 1, 24), repeat(refined, 300)))},
		{"jpeg, 1000 scans of a bit", jpeg(0xc2, side, 1, repeat(scan(0, 0, 0, []byte{0}), 1000))},
		{"jpeg, as many scans as are let in", jpeg(0xc2, side, 1, concat(dc, eobs(1, 63, 1, 24), repeat(refined, 6)))},
		{"jpeg of four colours", jpeg(0xc0, side, 4, scanOf(4, 0, 63, 0, make([]byte, 4*side*side/64/4)))},
		{"jpeg, sequential, 300 scans", jpeg(0xc1, side, 2+1, repeat(scan(0, 63, 0, make([]byte, 100)), 300))},
		{"jpeg, arithmetic", jpeg(0xc9, side, 3, scanOf(3, 0, 63, 0, bytes.Repeat([]byte{0x5a, 0x33, 0x7f}, 1<<19)))},
		{"jpeg, lossless", jpeg(0xc3, side, 1, scan(1, 0, 0, make([]byte, side*side/8)))},
		{"png, 16 bits, four colours", png(16, 6, 0, 8*side)},
		{"png, 16 bits, interlaced", png(16, 6, 1, 8*side)},
		{"png, profiles", profiles(30_000)},
		{"gif", gif()},
		{"tiff, deflate, 16 bits", tiff(side, side, 8, 5000, zlibbed(8*side*side), 1)},
		{"tiff, strips that lie over each other", tiff(6, 1<<20, 32773, 1, noise, 1<<20)},
		{"tiff, jpegs of one pixel", tiff(6, 1<<20, 7, 1, jpeg(0xc0, 64, 3, scanOf(3, 0, 63, 0, make([]byte, 64))), 1<<20)},
		{"tiff, group 4", tiff(side, side, 4, side, make([]byte, 1<<20), 1)},
		{"bmp, runs", bmp()},
		{"webp, lossless", webp()},
	}
}

func concat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// bits8 writes bits, the highest first, as a JPEG has them.
type bits8 struct {
	out  []byte
	bits uint64
	n    int
}

func (b *bits8) put(v uint64, n int) {
	b.bits, b.n = b.bits<<n|v, b.n+n
	for ; b.n >= 8; b.n -= 8 {
		c := byte(b.bits >> (b.n - 8))
		if b.out = append(b.out, c); c == 0xff {
			b.out = append(b.out, 0)
		}
	}
}

func (b *bits8) bytes() []byte {
	b.put(0, 7)
	return b.out
}

func segment(marker byte, body []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{0xff, marker}, uint16(len(body)+2)), body...)
}

func scan(first, last, bits byte, data []byte) []byte { return scanOf(1, first, last, bits, data) }

func scanOf(n, first, last, bits byte, data []byte) []byte {
	head := []byte{n}
	for c := range n {
		head = append(head, c+1, 0)
	}
	return append(segment(0xda, append(head, first, last, bits)), data...)
}

// jpeg is a file of a process, whose codes have one bit.
func jpeg(process byte, side, components int, scans []byte) []byte {
	frame := binary.BigEndian.AppendUint16([]byte{8}, uint16(side))
	frame = append(binary.BigEndian.AppendUint16(frame, uint16(side)), byte(components))
	for c := range components {
		frame = append(frame, byte(c+1), 0x11, 0)
	}
	table := func(class byte, symbol byte) []byte {
		return segment(0xc4, append(append([]byte{class, 1}, make([]byte, 15)...), symbol))
	}
	ac := byte(0) // the end of a block
	if process == 0xc2 {
		ac = 0xe0
	}
	return concat([]byte{0xff, 0xd8}, segment(0xdb, append([]byte{0}, bytes.Repeat([]byte{1}, 64)...)), segment(process, frame), table(0, 0), table(0x10, ac), scans, []byte{0xff, 0xd9})
}

func chunk(kind string, data []byte) []byte {
	b := append(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), kind...), data...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[4:]))
}

func zlibbed(n int) []byte {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	_, _ = z.Write(make([]byte, n)) // a buffer takes everything
	z.Close()
	return b.Bytes()
}

func pngHead(depth, colour, interlaced byte, side uint32) []byte {
	size := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, side), side)
	return append([]byte("\x89PNG\r\n\x1a\n"), chunk("IHDR", append(size, depth, colour, 0, 0, interlaced))...)
}

func png(depth, colour, interlaced byte, row int) []byte {
	rows := make([]byte, side*(row+1)+side*4)
	for y := range side {
		if interlaced == 0 {
			rows[y*(row+1)] = 4
		}
	}
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	_, _ = z.Write(rows)
	z.Close()
	return concat(pngHead(depth, colour, interlaced, side), chunk("IDAT", b.Bytes()), chunk("IEND", nil))
}

func profiles(n int) []byte {
	one := chunk("iCCP", append([]byte("a\x00\x00"), zlibbed(1<<20-1)...))
	return concat(pngHead(8, 2, 0, 5), bytes.Repeat(one, min(n, 30<<20/len(one))), chunk("IDAT", zlibbed(5*16)), chunk("IEND", nil))
}

// gif is one whose codes make ever longer runs of one colour.
func gif() []byte {
	b := []byte("GIF89a")
	b = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, side), side)
	b = append(b, 0, 0, 0, ',', 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, side), side)
	b = append(b, 0, 2)
	var codes []byte
	var bits, have uint
	put := func(code, size uint) {
		for bits, have = bits|code<<have, have+size; have >= 8; bits, have = bits>>8, have-8 {
			codes = append(codes, byte(bits))
		}
	}
	put(4, 3)
	put(0, 3)
	size, made := uint(3), 1
	for code := uint(6); made < side*side; code++ {
		if code < 4096 && code == 1<<size {
			size++
		}
		put(min(code, 4095), size)
		made += int(min(code, 4095)) - 4
	}
	put(0, 12)
	for len(codes) > 0 {
		n := min(255, len(codes))
		b = append(append(b, byte(n)), codes[:n]...)
		codes = codes[n:]
	}
	return append(b, 0, ';')
}

// tiff has strips that all have the same data.
func tiff(width, height, compression, rows int, data []byte, strips int) []byte {
	samples, bits, photometric := 4, 16, 2
	switch compression {
	case 32773:
		samples, bits, photometric = 1, 8, 1
	case 7:
		samples, bits, photometric = 3, 8, 2
	case 4:
		samples, bits, photometric = 1, 1, 0
	}
	if compression == 8 {
		rows = height
	}
	little := binary.LittleEndian
	const head = 8
	at := uint32(head + len(data))
	offsets, counts := make([]byte, 0, 4*strips), make([]byte, 0, 4*strips)
	for range strips {
		offsets, counts = little.AppendUint32(offsets, head), little.AppendUint32(counts, uint32(len(data)))
	}
	depth := make([]byte, 0, 8)
	for range samples {
		depth = little.AppendUint16(depth, uint16(bits))
	}
	tables := concat(offsets, counts, depth)
	type tag struct{ tag, kind, n, value uint32 }
	one := func(id, v int) tag { return tag{uint32(id), 4, 1, uint32(v)} }
	tags := []tag{one(256, width), one(257, height), {258, 3, uint32(samples), at + uint32(8*strips)}, one(259, compression), one(262, photometric),
		{273, 4, uint32(strips), at}, one(277, samples), one(278, rows), {279, 4, uint32(strips), at + uint32(4*strips)}}
	if samples == 1 {
		tags[2] = one(258, bits)
	}
	if strips == 1 {
		tags[5], tags[8] = one(273, head), one(279, len(data))
	}
	dir := little.AppendUint16(nil, uint16(len(tags)))
	for _, t := range tags {
		dir = little.AppendUint32(little.AppendUint32(little.AppendUint16(little.AppendUint16(dir, uint16(t.tag)), uint16(t.kind)), t.n), t.value)
	}
	return concat(little.AppendUint32([]byte("II*\x00"), at+uint32(len(tables))), data, tables, dir, make([]byte, 4))
}

func bmp() []byte {
	little := binary.LittleEndian
	const head = 14 + 40 + 4*256
	b := little.AppendUint32([]byte("BM"), 0)
	b = little.AppendUint32(little.AppendUint32(b, 0), head)
	b = little.AppendUint32(little.AppendUint32(little.AppendUint32(b, 40), side), side)
	b = little.AppendUint32(little.AppendUint16(little.AppendUint16(b, 1), 8), 1)
	b = append(b, make([]byte, head-len(b))...)
	for range side {
		for range side / 250 {
			b = append(b, 250, 7)
		}
		b = append(b, 0, 0)
	}
	return append(b, 0, 1)
}

// webp is one whose pixels take no bits.
func webp() []byte {
	var out []byte
	var bits, have uint64
	put := func(v, n uint64) {
		for bits, have = bits|v<<have, have+n; have >= 8; bits, have = bits>>8, have-8 {
			out = append(out, byte(bits))
		}
	}
	put(0x2f, 8)
	put(side-1, 14)
	put(side-1, 14)
	put(0, 1+3) // alpha, version
	put(0, 1)   // no transform
	put(0, 1)   // no cache of colours
	put(0, 1)   // one group of codes
	for range 5 {
		put(1, 1) // a simple code
		put(0, 1) // of one symbol
		put(0, 1) // of one bit
		put(0, 1) // 0
	}
	put(0, 7)
	if len(out)%2 == 1 {
		out = append(out, 0)
	}
	little := binary.LittleEndian
	b := append([]byte("WEBP"), "VP8L"...)
	b = append(little.AppendUint32(b, uint32(len(out))), out...)
	return append(little.AppendUint32([]byte("RIFF"), uint32(len(b))), b...)
}
