//go:build !amd64 || noasm

package preprocess

const (
	assembled = false
	rowBytes  = 0
)

func sumColumns(dst, src *uint8, first *int, origin int, weights *int32, taps, n int) {
	panic("preprocess: no assembly")
}

func sumRows(dst, src *uint8, stride int, weights *int32, taps, n int) {
	panic("preprocess: no assembly")
}
