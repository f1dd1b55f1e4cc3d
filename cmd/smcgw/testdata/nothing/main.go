// Command nothing does nothing: a Go program to look at.
package main

func main() {}
