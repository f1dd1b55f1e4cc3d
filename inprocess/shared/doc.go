// Package shared makes the files that processes and their gateway have in common: sparse memory of one writer, whose size
// is sealed, and which others read by a descriptor that cannot be opened again for writing. It maps nothing.
//
// The trap: nothing can be sealed after [Seal]. Memory that its maker alone writes is mapped before, and then sealed against
// other writers.
package shared
