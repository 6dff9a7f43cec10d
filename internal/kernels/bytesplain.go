package kernels

import (
	"math"
	"unsafe"
)

// BytesInGo makes coarse products those of bytes, in plain Go, until undo is called. No set
// has them, as there products of float32 are faster; with them tests of what uses bytes need
// no other processor. Either they are those of AMX, or those of AVX2.
func BytesInGo(ofAVX2 bool) (undo func()) {
	f := &chosen().f64
	before := f.bytes
	f.bytes = &byteKernels{times: plainTimesBytes[int8], most: largestByte, largest: plainLargest, shrink: plainShrink}
	if ofAVX2 {
		f.bytes.times, f.bytes.most, f.bytes.offset = plainTimesBytes[uint8], mostOfAVX2, mostOfAVX2
	}
	return func() { f.bytes = before }
}

// plainTimesBytes multiplies bytes of A with or without sign.
func plainTimesBytes[A int8 | uint8](t *bytesTask) {
	k, ldc := t.steps*byteStep, t.ldc/4
	rows, columns := unsafe.Slice(t.rows, 2*byteRows), unsafe.Slice(t.columns, t.panels*2*byteRows)
	a, b := unsafe.Slice(t.a, byteRows*k), unsafe.Slice(t.b, t.panels*byteRows*k)
	c, start := unsafe.Slice(t.c, (byteRows-1)*ldc+t.panels*byteRows), unsafe.Slice(t.start, t.panels*byteRows)
	for j := range t.panels * byteRows {
		b, column := b[j/16*16*k+j%16*4:], columns[j/byteRows*2*byteRows+j%byteRows:]
		for i := range byteRows {
			a := a[i/16*16*k+i%16*byteStep:]
			sum := start[j]
			for p := range k {
				sum += int32(A(a[p/byteStep*16*byteStep+p%byteStep])) * int32(b[p/4*16*4+p%4])
			}
			c[i*ldc+j] = float32(sum)*column[0]*rows[2*i] + rows[2*i+1]*column[byteRows]
		}
	}
	t.panels = 0
}

func plainLargest(row *float32, n int) (largest float32) {
	for _, v := range unsafe.Slice(row, n) {
		largest = max(largest, v, -v)
	}
	return largest
}

func plainShrink(toAt *int8, row *float32, n int, by, scale float32) float32 {
	to := unsafe.Slice(toAt, n)
	var sum float64
	for i, v := range unsafe.Slice(row, n) {
		rounded := math.RoundToEven(float64(v * by))
		to[i] = int8(rounded)
		changed := float64(v) - rounded*float64(scale)
		sum += changed * changed
	}
	return float32(sum)
}
