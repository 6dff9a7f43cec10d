package main

func wide() {}
