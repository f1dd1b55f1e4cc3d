// Package ktime tells the time that programs in the kernel tell.
//
// It knows neither programs nor maps. The trap: time.Now has what a time namespace adds.
package ktime
