package kernels

import (
	"math"
	"unsafe"
)

// plainBytes are products of bytes in plain Go. No set has them: without tiles, products
// of longer numbers are faster.
var plainBytes = byteKernels{times: plainTimesBytes, most: largestByte, largest: plainLargest, shrink: plainShrink}

// BytesInGo makes coarse products those of bytes, in plain Go, until undo is called. With
// it tests of what uses them need no AMX.
func BytesInGo() (undo func()) {
	k := &chosen().f64
	before := k.bytes
	k.bytes = &plainBytes
	return func() { k.bytes = before }
}

func plainTimesBytes(t *bytesTask) {
	k, ldc := t.steps*byteStep, t.ldc/4
	rows, columns := unsafe.Slice(t.rows, 2*byteRows), unsafe.Slice(t.columns, t.panels*2*byteRows)
	a, b := unsafe.Slice(t.a, byteRows*k), unsafe.Slice(t.b, t.panels*byteRows*k)
	c := unsafe.Slice(t.c, (byteRows-1)*ldc+t.panels*byteRows)
	for j := range t.panels * byteRows {
		b, column := b[j/16*16*k+j%16*4:], columns[j/byteRows*2*byteRows+j%byteRows:]
		for i := range byteRows {
			a := a[i/16*16*k+i%16*byteStep:]
			var sum int32
			for p := range k {
				sum += int32(a[p/byteStep*16*byteStep+p%byteStep]) * int32(b[p/4*16*4+p%4])
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
