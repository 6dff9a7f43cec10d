//go:build !noasm

package kernels

import "golang.org/x/sys/cpu"

// assembled lists the sets in assembly that this machine can run, amx only if it is
// wanted: Linux is asked for it.
func assembled(amx bool) []set {
	var sets []set
	add := func(name, kernels string, m machine, v vectorKernels) {
		sets = append(sets, set{name, kernels, func() Products[float32] { return &products{machine: m} }, &v})
	}
	x := &cpu.X86
	if !x.HasAVX2 || !x.HasFMA || !x.HasBMI2 {
		return nil
	}
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL {
		if amx && hasAMX() {
			add("amx", "avx512", machineAVX512, vectorsAVX512)
		}
		add("avx512", "avx512", machineAVX512, vectorsAVX512)
	}
	add("avx2", "avx2", machineAVX2, vectorsAVX2)
	return sets
}
