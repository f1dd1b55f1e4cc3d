package shm

func child(string) int { return 0 }
