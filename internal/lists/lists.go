// Package lists has what package slices lacks.
package lists

// Map returns f of each value.
func Map[T, U any](list []T, f func(T) U) []U {
	all := make([]U, len(list))
	for i, v := range list {
		all[i] = f(v)
	}
	return all
}

// UpTo returns the numbers from 0 to n−1.
func UpTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
