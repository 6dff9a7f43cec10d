// Native is the shared library of the Python package mlrbfn, which also holds the
// program: go build -buildmode=c-shared -o libmlrbfn.so ./python/native. What its
// functions do is in package python/internal/native.
package main

/*
#include <stdint.h>
#include <stdlib.h>

typedef struct {
	void *data;
	int64_t bytes;
} mlrbfn_buffer;
*/
import "C"

import (
	"os"
	"unsafe"

	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/python/internal/native"
)

// mlrbfn_call calls a function by its name. The call has a number that no other call has
// at the time. Arguments are JSON; the answer, too, which mlrbfn_free frees.
//
//export mlrbfn_call
func mlrbfn_call(number C.int64_t, name, arguments *C.char, buffers *C.mlrbfn_buffer, n C.int64_t) *C.char {
	var all []native.Buffer
	for _, b := range unsafe.Slice(buffers, int(n)) {
		all = append(all, native.Buffer(unsafe.Slice((*byte)(b.data), int(b.bytes))))
	}
	answer := native.Call(int64(number), C.GoString(name), []byte(C.GoString(arguments)), all)
	return C.CString(string(answer))
}

// mlrbfn_progress says as JSON how far a call is.
//
//export mlrbfn_progress
func mlrbfn_progress(number C.int64_t) *C.char {
	return C.CString(string(native.Progress(int64(number))))
}

// mlrbfn_cancel has a call end soon.
//
//export mlrbfn_cancel
func mlrbfn_cancel(number C.int64_t) { native.Cancel(int64(number)) }

// mlrbfn_free frees an answer.
//
//export mlrbfn_free
func mlrbfn_free(answer *C.char) { C.free(unsafe.Pointer(answer)) }

// mlrbfn_main is the program mlrbfn, which ends the process. Without arguments it takes
// those that the system has.
//
//export mlrbfn_main
func mlrbfn_main(argc C.int, argv **C.char) {
	if argc > 0 {
		os.Args = nil
		for _, arg := range unsafe.Slice(argv, int(argc)) {
			os.Args = append(os.Args, C.GoString(arg))
		}
	}
	command.Main()
}

func main() {}
